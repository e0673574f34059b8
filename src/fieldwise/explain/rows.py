"""Why a row scores as it does: exact effects of fields and pairs, and exact Shapley values."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .. import maths
from ..blas import weighted_sum
from ..errors import MissingExtra, SettingError
from ..layout import Layout

__all__ = ["Explanation", "Marginals", "RowExplainer", "credit_shares"]

SMALL = 16  # with fewer rows, no other threads are used


@dataclass(frozen=True)
class Marginals:
    """How categories are distributed in training: the mean over rows of each one's value and of its
    square, (d,) each. For a category without values both are its share."""

    weight: np.ndarray
    square: np.ndarray

    @classmethod
    def of_counts(
        cls,
        layout: Layout,
        counts: np.ndarray,
        moments: np.ndarray | None = None,
        valued: Sequence[int] = (),
    ) -> Marginals:
        """From counts (d,), and moments (d, 2) of the fields whose slots carry values, `valued`"""
        share = maths.category_shares(layout, counts)
        out = cls(share, share.copy())
        if moments is not None:
            for i in {int(layout.slot_owner[s]) for s in valued}:
                own = layout.own(i)
                out.weight[own], out.square[own] = moments[own].T
        return out

    def is_plain(self, layout: Layout) -> np.ndarray:
        """(m,) true for fields of one category at a time, without values"""
        return np.array(
            [
                layout.slots[i] == 1
                and np.array_equal(self.weight[layout.own(i)], self.square[layout.own(i)])
                for i in range(layout.n_fields)
            ]
        )


class RowExplainer:
    """Explains rows; holds what is computed once for a model: mean rows and main effects.

    rows (d + m, R + K) is the table with its rows for unseen values at the end, offsets (K,).
    """

    def __init__(
        self, rows: np.ndarray, layout: Layout, marginals: Marginals, offsets: np.ndarray
    ) -> None:
        if layout.component != "linear":
            raise SettingError(
                f"explanations split a score into effects of fields and pairs; the component "
                f"{layout.component!r} has more than those"
            )
        self.table, self.layout, self.marginals = rows, layout, marginals
        m, K, R = layout.n_fields, layout.n_outputs, layout.n_columns
        self.mean = maths.field_means(rows, layout, marginals.weight)
        middle = maths.pair_effects(layout, self.mean[None], self.mean[None])[0]
        self.base = offsets + self.mean[:, R:].sum(axis=0) + middle.sum(axis=(1, 2)) / 2
        self.worth = np.zeros((len(rows), K))
        self.middle = np.zeros((m, K))
        for i in range(m):
            slopes = maths.main_slopes(layout, self.mean, i)  # (R + K, K)
            own = layout.own(i)
            for part in maths.pieces(own):
                self.worth[part] = rows[part] @ slopes
            self.worth[layout.n_rows + i] = rows[layout.n_rows + i] @ slopes
            self.middle[i] = weighted_sum(marginals.weight[own], self.worth[own])

    def __call__(
        self, codes: np.ndarray, wide: np.ndarray | None, *, pairs: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """main (n, K, m), Shapley values (n, K, m) and, if `pairs`, pair effects (n, K, m, m)

        codes (n, S), -1 for unseen; wide (n, S) values, or None. Safe to call from many threads:
        those that find the pool busy work alone.
        """
        from ..engines._numba import pool
        from . import _kernels

        layout = self.layout
        n, K, m = len(codes), layout.n_outputs, layout.n_fields
        at = layout.rows_or_unseen(codes)
        x = np.zeros((1, 1), np.float32) if wide is None else wide.astype(np.float32)
        main, halves = np.empty((n, K, m)), np.empty((n, K, m))
        found = np.zeros((n, K, m, m) if pairs else (1, 1, 1, 1))
        with pool(wanted=n >= SMALL) as n_threads:
            _kernels.explain(
                *(self.table, self.mean.astype(np.float32), at, x, wide is not None),
                *(layout.starts, layout.slot_starts, K, self.worth, self.middle),
                *(main, halves, found, pairs, not n_threads),
            )
        return main, main + halves, found


def credit_shares(
    names: Sequence[str], crosses: Mapping[str, tuple[str, ...]]
) -> tuple[list[str], np.ndarray]:
    """The fields that are not evidence, and their shares (m, c) in the value of every field: equal
    among those it is made of."""
    kept = [name for name in names if name not in crosses]
    share = np.zeros((len(names), len(kept)))
    for j, name in enumerate(names):
        for parent in crosses.get(name, (name,)):
            share[j, kept.index(parent)] += 1 / len(crosses.get(name, (name,)))
    return kept, share


@dataclass
class Explanation:
    """The scores of rows, split into effects. For every row `base` + the sum of `fields` + the sum
    of `pairs` over i < j is the score, and so is `base` + the sum of `shapley`.

    Shapes are for n rows and m fields; with several outputs (classes, targets) arrays have one more
    axis for them, the second.

    Attributes
    ----------
    base : the score of an average row: a number, or one for each output.
    fields : (n, m), what every field adds by itself.
    pairs : (n, m, m), what two fields add together beyond what each adds alone; every pair is there
        twice.
    shapley : (n, m), exact Shapley values: a field's own effect and half of each of its pairs.
    names : the fields, in the order of the axes.
    values : what the rows hold, a frame with a column for each field.
    crosses : fields that are evidence of crosses, and the fields they are made of; see `credited`.
    """

    base: Any  # a number, or (K,)
    fields: np.ndarray  # (n, m) main effects
    shapley: np.ndarray  # (n, m)
    names: Sequence[str]
    _of_values: Any
    _of_pairs: Any
    crosses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # evidence and its fields

    @cached_property
    def values(self) -> Any:
        """What the rows hold, a frame with a column for each field."""
        return self._of_values()

    @cached_property
    def pairs(self) -> np.ndarray:
        """(n, m, m) what two fields add together beyond what each adds alone; each pair twice"""
        found: np.ndarray = self._of_pairs()
        return found

    def credited(self) -> Explanation:
        """The same with the value of evidence split equally among the fields it is made of. Only
        the table's own fields are left; their values still sum to the score."""
        kept, share = credit_shares(self.names, self.crosses)

        def pairs() -> np.ndarray:
            raise SettingError(
                "credited fields have no effects of pairs; see the explanation before `credited`"
            )

        effects = (self.fields @ share, self.shapley @ share)
        return Explanation(self.base, *effects, kept, lambda: self.values.select(kept), pairs)

    def to_shap(self) -> Any:
        """The Shapley values as a `shap.Explanation`, for the plots of the package `shap`."""
        try:
            import shap
        except ImportError:
            raise MissingExtra("shap", "shap") from None
        values, base = self.shapley, np.broadcast_to(self.base, self.shapley.shape[:-1])
        if values.ndim == 3:
            values = values.swapaxes(1, 2)  # outputs come last there
        return shap.Explanation(
            values=np.ascontiguousarray(values),
            base_values=np.array(base),
            data=self._held(),
            feature_names=list(self.names),
        )

    def plot(self, n: int = 0, ax: Any = None) -> Any:
        """Plot the steps of all fields from the base to the score of row n; returns the axes."""
        from .figures import plot_waterfall

        if self.shapley.ndim > 2:
            raise SettingError("the model has several scores; only a single one can be plotted")
        row = self._rows()[n]
        return plot_waterfall(row, self.base, list(self.names), ax, unit="score")

    def _rows(self) -> list[dict[str, Any]]:
        """The rows as plots and notebooks take them."""
        return [
            {"values": ["" if v is None else v for v in row], "effects": effects,
             "score": self.base + effects.sum()}
            for row, effects in zip(self._held(), self.shapley, strict=True)
        ]  # fmt: skip

    def _held(self) -> np.ndarray:
        """What rows hold, (n, m); lists as text, because `shap` would split them up"""
        out = np.empty((len(self.shapley), len(self.names)), dtype=object)
        for n, row in enumerate(self.values.rows()):
            out[n] = [", ".join(map(str, v)) if isinstance(v, list) else v for v in row]
        return out

    def _repr_html_(self) -> str:
        from .html import explanation_html

        if self.shapley.ndim > 2:
            return html.escape(repr(self))
        return explanation_html(self.base, list(self.names), self._rows(), "score")
