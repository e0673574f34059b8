"""Are predictions right on average, overall and for every category; and where are they worst.

Predictions, outcomes and losses of rows are added up by category as they come, so that a table of
any size is judged in the memory of one sum a category, and of its predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import DataError
from ..layout import Layout

__all__ = ["Calibration", "Judge", "reliability"]

LEAST = 30  # rows of a category that is worth a word
Z = 1.96


@dataclass(frozen=True)
class Calibration:
    """`error` is the mean distance of predicted and observed over bins of equal weight, `bins` the
    reliability curve, `fields` the largest categories of every field; `slices` are the categories
    with the highest loss beyond what their number of rows would explain, worst first."""

    rows: int
    loss: float
    error: float
    bins: Sequence[dict[str, float]]
    fields: Sequence[dict[str, Any]]
    slices: Sequence[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON and pages."""
        return asdict(self)


def reliability(p: np.ndarray, y: np.ndarray, w: np.ndarray, n_bins: int) -> list[dict[str, float]]:
    """Predicted and observed means over bins of equal weight, from low to high predictions, with a
    95 % interval of what is observed."""
    order = np.argsort(p, kind="stable")
    p, y, w = p[order], y[order], w[order]
    done = np.cumsum(w)
    part = np.minimum((done - w / 2) / done[-1] * n_bins, n_bins - 1).astype(int)
    out = []
    for k in np.unique(part):
        mine = part == k
        total = w[mine].sum()
        mean = float(np.sum(w[mine] * y[mine]) / total)
        spread = float(np.sum(w[mine] * (y[mine] - mean) ** 2) / total)
        count = int(np.count_nonzero(mine))
        away = Z * np.sqrt(spread / count)
        predicted = float(np.sum(w[mine] * p[mine]) / total)
        out.append(
            {
                "predicted": predicted,
                "observed": mean,
                "count": count,
                "share": float(total / done[-1]),
                "low": mean - away,
                "high": mean + away,
            }
        )
    return out


class Judge:
    """Takes predictions as they come; `found` says how good they were."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # Of every category, and of each field's unseen values after them all: the number of rows,
        # the weight, and the weighted sums of p, y, loss and its square.
        self._sums = np.zeros((6, layout.n_rows + layout.n_fields))
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._loss = 0.0

    def add(
        self,
        codes: np.ndarray,
        wide: np.ndarray | None,
        p: np.ndarray,
        y: np.ndarray,
        w: np.ndarray,
        loss: np.ndarray,
    ) -> None:
        """codes (n, S), wide (n, S) values or None; the prediction, outcome, weight and loss of
        rows, (n,)"""
        self._parts.append((p, y, w))
        self._loss += float(np.sum(w * loss))
        layout = self._layout
        at = np.where(codes < 0, layout.n_rows + layout.slot_owner, layout.rows(codes))
        terms = (np.ones_like(w), w, w * p, w * y, w * loss, w * loss**2)
        for s, field in enumerate(layout.slot_owner):
            # Of a list, slots that are empty do not count.
            here = slice(None)
            if wide is not None and layout.slots[field] > 1:
                here = wide[:, s] != 0
            for sums, term in zip(self._sums, terms, strict=True):
                sums += np.bincount(at[here, s], term[here], minlength=len(sums))

    def found(
        self,
        names: Sequence[str],
        label: Callable[[int, int], str],
        *,
        n_bins: int = 20,
        largest: int = 5,
        worst: int = 20,
    ) -> Calibration:
        """`label` gives the text of a field's number and a code."""
        if not self._parts or not sum(len(p) for p, _, _ in self._parts):
            raise DataError("there are no rows to judge by")
        p, y, w = map(np.concatenate, zip(*self._parts, strict=True))
        if not w.sum() > 0:
            raise DataError("the rows to judge by have no weight")
        bins = reliability(p, y, w, n_bins)
        error = sum(b["share"] * abs(b["predicted"] - b["observed"]) for b in bins)
        overall = self._loss / float(w.sum())
        fields, slices = [], []
        for i, name in enumerate(names):
            own, unseen = self._layout.own(i), self._layout.n_rows + i
            rows = np.r_[own.start : own.stop, unseen]
            count, weight, predicted, observed, loss, square = self._sums[:, rows]
            order = np.argsort(-count, kind="stable")
            for k in order[:largest].tolist():
                if weight[k] > 0:
                    about = self._about(i, k, name, label, count[k])
                    pair = (float(predicted[k] / weight[k]), float(observed[k] / weight[k]))
                    about |= {"predicted": pair[0], "observed": pair[1]}
                    fields.append({**about, "error": abs(pair[0] - pair[1])})
            for k in np.flatnonzero((count >= LEAST) & (weight > 0)).tolist():
                mean = loss[k] / weight[k]
                spread = max(square[k] / weight[k] - mean**2, 0.0)
                sure = mean - overall - Z * np.sqrt(spread / count[k])
                if sure > 0:
                    about = self._about(i, k, name, label, count[k])
                    about |= {"logloss": float(mean), "overall": overall}
                    slices.append((sure, {**about, "excess": float(mean - overall)}))
        slices.sort(key=lambda pair: -pair[0])
        return Calibration(
            len(p), overall, float(error), bins, fields, [s for _, s in slices[:worst]]
        )

    def _about(
        self, i: int, k: int, name: str, label: Callable[[int, int], str], count: float
    ) -> dict[str, Any]:
        unseen = k == self._layout.sizes[i]
        text = "(unseen)" if unseen else label(i, int(k))
        return {"field": name, "category": text, "count": int(count)}
