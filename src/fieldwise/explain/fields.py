"""How much every field matters: the paper's importance, and shares of the score's variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import maths
from .rows import RowExplainer

__all__ = ["FieldImportance", "field_importance"]


@dataclass(frozen=True)
class FieldImportance:
    """How much every field and pair of fields matters, for one output of a model.

    Shares are of the variance that the score would have if fields were independent; those of fields
    and pairs add up to 1. Look at them first: importance weighs all categories alike, however rare.

    Attributes
    ----------
    names : the m fields, in the order of the arrays.
    output : the class or target whose score is explained.
    importance : (m,), the paper's: how much a field's models differ on average,
        ||W_b - mean||_F / d_i.
    share : (m,), the share of the variance due to a field alone.
    pairs : (m, m), the share due to two fields together and neither alone; every pair is there
        twice.
    variance : of the score, if fields were independent.
    """

    names: Sequence[str]
    output: str
    importance: np.ndarray  # (m,)
    share: np.ndarray  # (m,)
    pairs: np.ndarray  # (m, m), each pair twice
    variance: float

    @property
    def pair_share(self) -> np.ndarray:
        """(m,) half the shares of every field's pairs"""
        out: np.ndarray = self.pairs.sum(axis=1) / 2
        return out

    def to_dict(self) -> dict[str, Any]:
        """For JSON and pages: a row for each field, the largest share of variance first."""
        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "importance": float(self.importance[i]),
                "share": float(self.share[i]),
                "pair_share": float(self.pair_share[i]),
            }
            for i, name in enumerate(self.names)
        ]
        rows.sort(key=lambda row: -(row["share"] + row["pair_share"]))
        return {"output": self.output, "variance": self.variance, "fields": rows}

    def plot(self, ax: Any = None) -> Any:
        """Plot each field's share of the score's variance with matplotlib; returns the axes."""
        from .figures import plot_importance

        return plot_importance(self.to_dict()["fields"], ax)

    def plot_pairs(self, ax: Any = None) -> Any:
        """Plot the shares of pairs of fields as a heat map; returns the axes."""
        from .figures import plot_pairs

        rows = {row["name"]: row for row in self.to_dict()["fields"]}
        fields = [rows[name] for name in self.names]
        return plot_pairs(fields, self.pairs + np.diag(self.share), ax)

    def _repr_html_(self) -> str:
        from .html import fields_html

        return fields_html(self.to_dict())


def field_importance(
    explainer: RowExplainer, names: Sequence[str], output: int, output_name: str
) -> FieldImportance:
    """What every field and pair of fields adds to the variance of an output's score."""
    layout, marginals = explainer.layout, explainer.marginals
    table = explainer.table[: layout.n_rows]
    main, pairs = maths.variances(table, layout, explainer.mean, marginals.weight, marginals.square)
    main, pairs = np.maximum(main[output], 0), np.maximum(pairs[output], 0)
    total = float(main.sum() + pairs.sum() / 2)
    scale = total or 1.0
    importance = maths.importance(table, layout)
    return FieldImportance(names, output_name, importance, main / scale, pairs / scale, total)
