"""Explanations of rows by boosted trees: the trees' exact contributions, credited to the fields
their features are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..boosted import Boosted
from ..errors import ModelError
from .rows import Explanation

__all__ = ["tree_explanation"]


def tree_explanation(
    boosted: Boosted,
    features: np.ndarray,
    parents: Sequence[tuple[str, ...]],
    plain: Explanation,
) -> Explanation:
    """What every field adds to the score of each row, by the trees' Shapley values.

    features (n, K + F): the field-wise scores, then F others, whose fields `parents` names. The
    value of evidence is split equally among its fields, that of a field-wise score in proportion to
    how much each field moves it (`plain`).
    """
    found, base = boosted.contributions(features)  # (n, K, K + F), (n, K)
    n_scores = features.shape[1] - len(parents)
    names = list(plain.names)
    moved = np.abs(plain.shapley).reshape(len(features), n_scores, len(names))
    total = moved.sum(axis=2, keepdims=True)
    share = np.where(total > 0, moved / np.where(total > 0, total, 1.0), 1.0 / len(names))
    values = np.einsum("nks,nsm->nkm", found[:, :, :n_scores], share)
    for f, of in enumerate(parents):
        for name in of:
            values[:, :, names.index(name)] += found[:, :, n_scores + f] / len(of)

    def pairs() -> np.ndarray:
        raise ModelError(
            "boosted trees have no effects of pairs; a model of preset='glass' has them"
        )

    single = values.shape[1] == 1
    shapley = values[:, 0] if single else values
    start = float(base[0, 0]) if single else base[0]
    return Explanation(start, shapley, shapley, names, lambda: plain.values, pairs)
