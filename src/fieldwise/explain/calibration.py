"""Are predictions right on average, overall and for every category; and where are they worst?

Predictions, outcomes and losses of rows are summed by category as they come, so that a table of any
size takes the memory of a few sums per category and of its predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from ..blas import weighted_sum
from ..errors import DataError
from ..layout import Layout
from ..metrics import equal_parts

__all__ = ["Calibration", "Judge", "reliability"]

LEAST = 30  # rows of a category, for it to be reported
Z = 1.96  # of 95 %


@dataclass(frozen=True)
class Calibration:
    """`error` is the mean distance of predicted and observed over bins of equal weight, `bins` the
    reliability curve, `fields` the largest categories of every field; `slices` are the categories
    whose loss exceeds the overall one by more than chance explains, worst first."""

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
    95 % interval of the observed mean: Wilson's for shares, else the normal one. Rows of weight 0
    do not count."""
    p, y, w = (a[w > 0] for a in (p, y, w))
    part = equal_parts(p, w, n_bins)
    is_share = bool(np.all((y >= 0) & (y <= 1)))
    out = []
    for k in np.unique(part):
        mine = part == k
        total = float(w[mine].sum())
        mean = float(weighted_sum(w[mine], y[mine])) / total
        spread = float(weighted_sum(w[mine], (y[mine] - mean) ** 2)) / total
        # The effective number of rows.
        n = total**2 / float(weighted_sum(w[mine], w[mine]))
        low, high = _wilson(mean, n) if is_share else _normal(mean, spread, n)
        predicted = float(weighted_sum(w[mine], p[mine])) / total
        about = {"predicted": predicted, "observed": mean, "low": low, "high": high}
        about |= {"count": int(np.count_nonzero(mine)), "share": total / float(w.sum())}
        out.append(about)
    return out


def _normal(mean: float, spread: float, n: float) -> tuple[float, float]:
    away = Z * (spread / n) ** 0.5
    return mean - away, mean + away


def _wilson(share: float, n: float) -> tuple[float, float]:
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    away = Z / (1 + Z**2 / n) * (share * (1 - share) / n + Z**2 / (4 * n**2)) ** 0.5
    return middle - away, middle + away


class Judge:
    """Collects predictions as they come; `found` says how good they were."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # For every category, then for each field's unseen values: the number of rows, the weight
        # and its square, and the weighted sums of p, y, loss and its square.
        self._sums = np.zeros((7, layout.n_rows + layout.n_fields))
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
        """Add rows: codes (n, S), wide (n, S) values or None; the prediction, outcome, weight and
        loss, (n,)"""
        self._parts.append((p, y, w))
        self._loss += float(weighted_sum(w, loss))
        layout = self._layout
        ones = (w > 0).astype(float)
        terms = (ones, w, w**2, w * p, w * y, w * loss, w * loss**2)
        for s, field in enumerate(layout.slot_owner):
            own, size = layout.own(field), layout.sizes[field]
            at = np.where(codes[:, s] < 0, size, codes[:, s])
            # Empty slots of a list do not count.
            here = wide[:, s] != 0 if wide is not None and layout.slots[field] > 1 else slice(None)
            for sums, term in zip(self._sums, terms, strict=True):
                found = np.bincount(at[here], term[here], minlength=size + 1)
                sums[own] += found[:size]
                sums[layout.n_rows + field] += found[size]

    def found(
        self,
        names: Sequence[str],
        label: Callable[[int, int], str],
        *,
        n_bins: int = 20,
        largest: int = 5,
        worst: int = 20,
    ) -> Calibration:
        """The calibration of all rows added. `label` maps a field's index and a code to text."""
        if not self._parts or not sum(len(p) for p, _, _ in self._parts):
            raise DataError("there are no rows to evaluate on")
        p, y, w = map(np.concatenate, zip(*self._parts, strict=True))
        if not w.sum() > 0:
            raise DataError("the rows to evaluate on have no weight")
        p, y, w = (a[w > 0] for a in (p, y, w))
        bins = reliability(p, y, w, n_bins)
        error = sum(b["share"] * abs(b["predicted"] - b["observed"]) for b in bins)
        overall = self._loss / float(w.sum())
        fields, slices = [], []
        # With so many tests some stand out by chance; the level of 5 % is for all tests together.
        n_tested = max(int(np.count_nonzero(self._sums[0] >= LEAST)), 1)
        far = NormalDist().inv_cdf(1 - 0.05 / n_tested)
        for i, name in enumerate(names):
            own, unseen = self._layout.own(i), self._layout.n_rows + i
            rows = np.r_[own.start : own.stop, unseen]
            count, weight, of_squares, predicted, observed, loss, square = self._sums[:, rows]
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
                n = weight[k] ** 2 / of_squares[k]
                sure = mean - overall - far * np.sqrt(spread / n)
                if sure > 0:
                    about = self._about(i, k, name, label, count[k])
                    about |= {"loss": float(mean), "overall": overall}
                    slices.append((sure, {**about, "excess": float(mean - overall)}))
        slices.sort(key=lambda pair: -pair[0])
        worst_ones = [about for _, about in slices[:worst]]
        return Calibration(len(p), overall, float(error), bins, fields, worst_ones)

    def _about(
        self, i: int, k: int, name: str, label: Callable[[int, int], str], count: float
    ) -> dict[str, Any]:
        unseen = k == self._layout.sizes[i]
        text = "(unseen)" if unseen else label(i, int(k))
        return {"field": name, "category": text, "count": int(count)}
