"""The model of every category: its weights, its distance from the mean of its field's models, the
categories whose models are nearest. W is never formed: a category's weights are computed on demand,
distances come from G = U^T U.

A field has one category at a time, so a constant can be moved from all weights of a field to the
bias without changing the model. Shown is the form in which the weights of every field have mean 0
over training, and the bias is the model's score of an average row. (Numbers and lists stay as they
are.) Distances are of W_b as it was learned, as in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import erf, sqrt
from typing import Any

import numpy as np

from ..losses import sigmoid, softmax
from .rows import RowExplainer

__all__ = ["CategoryCard", "CategoryModels", "Comparison", "Difference", "Partner", "confidence"]

SEEN = 10  # times a partner must have been seen to be shown, if any was


class CategoryModels:
    """The models of one output. Rows are numbered over all fields, as in the table."""

    def __init__(self, explainer: RowExplainer, counts: np.ndarray, output: int = 0) -> None:
        self.layout, self.counts, self.output = explainer.layout, counts, output
        self._table, self._mean = explainer.table, explainer.mean
        self._plain = explainer.marginals.is_plain(self.layout)
        # A field of one slot has a category in every row.
        single = [i for i in range(self.layout.n_fields) if self.layout.slots[i] == 1]
        sums = [int(counts[self.layout.own(i)].sum()) for i in single]
        self.n_rows = max(sums) if sums else int(counts.max(initial=0))
        self._worth = explainer.worth[: self.layout.n_rows, output]
        self.main = self._mains(explainer)
        self.bias = self._biases()
        self.points = lru_cache(maxsize=None)(self._placed)
        self.distances = lru_cache(maxsize=None)(self._distances)
        self.typical = lru_cache(maxsize=None)(self._typical)
        self._often = lru_cache(maxsize=None)(self._seen_often)

    def field_of(self, row: int) -> int:
        return int(np.searchsorted(self.layout.offsets, row, side="right") - 1)

    def weights(self, row: int) -> np.ndarray:
        """w_k = V_k U^T, less its mean over every field, for the rows of all fields, (d,); for
        those of its own field they are meaningless"""
        block = self.layout.block(self.output, self.field_of(row))
        v = self._table[row, block]
        found: np.ndarray = self._table[: self.layout.n_rows, block] @ v
        middle = np.where(self._plain, self._mean[:, block] @ v, 0.0)
        return found - np.repeat(middle.astype(np.float32), self.layout.sizes)

    def _mains(self, explainer: RowExplainer) -> np.ndarray:
        """What every category adds on average, (d,): less its field's mean if a row has just one;
        in a list at its usual value there; for a number what a value of 1 adds"""
        out = np.array(self._worth)
        for i in range(self.layout.n_fields):
            own = self.layout.own(i)
            if self._plain[i]:
                out[own] -= explainer.middle[i, self.output]
            elif self.layout.slots[i] > 1:
                out[own] *= self.usual_value(own, explainer.marginals.weight)
        return out

    def usual_value(self, rows: slice, weight: np.ndarray) -> np.ndarray:
        """The mean value of categories in the rows that have them, from their mean over all."""
        share = self.counts[rows] / max(self.n_rows, 1)
        return np.where(share > 0, weight[rows] / np.maximum(share, 1e-300), 0.0)

    def _biases(self) -> np.ndarray:
        """b_k, plus the means over other fields that were taken from the weights, (d,)"""
        out = np.empty(self.layout.n_rows)
        for i in range(self.layout.n_fields):
            V, b = self._field(i)
            block = self.layout.block(self.output, i)
            others = self._plain & (np.arange(self.layout.n_fields) != i)
            out[self.layout.own(i)] = b + V @ self._mean[others, block].sum(axis=0)
        return out

    def effects(self, row: int, partners: np.ndarray) -> np.ndarray:
        """What the category and each partner, a row of another field, add together beyond what each
        adds alone: pair_ij(~B, ~B) of maths.py, (n,)"""
        i, o, layout = self.field_of(row), self.output, self.layout
        mine = self._table[row].astype(np.float64) - self._mean[i]
        out = np.empty(len(partners))
        for n, partner in enumerate(partners):
            j = self.field_of(partner)
            its = self._table[partner].astype(np.float64) - self._mean[j]
            own, other = layout.block(o, i), layout.block(o, j)
            out[n] = mine[own] @ its[own] + mine[other] @ its[other]
        return out

    def _field(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """V (d_i, r) and b (d_i,) of a field"""
        own, block = self.layout.own(i), self.layout.block(self.output, i)
        b = self._table[own, self.layout.n_columns + self.output]
        return self._table[own, block].astype(np.float64), b.astype(np.float64)

    def _placed(self, i: int) -> np.ndarray:
        """(d_i, r + 1) a point for each category, as far apart as their models: V L and b, with
        L L^T = G = U^T U over the rows of the other fields"""
        block, own = self.layout.block(self.output, i), self.layout.own(i)
        X = self._table[: self.layout.n_rows, block].astype(np.float64)
        values, vectors = np.linalg.eigh(X.T @ X - X[own].T @ X[own])
        V, b = self._field(i)
        L = vectors * np.sqrt(np.maximum(values, 0))
        return np.concatenate([V @ L, b[:, None]], axis=1)

    def _distances(self, i: int) -> np.ndarray:
        """||W_b - mean|| of every category of a field, (d_i,): importance is their norm over d_i"""
        points = self.points(i)
        found: np.ndarray = np.linalg.norm(points - points.mean(axis=0), axis=1)
        return found

    def _typical(self, i: int) -> float:
        """The median distance of the categories seen in training."""
        seen = self.counts[self.layout.own(i)] > 0
        return float(np.median(self.distances(i)[seen])) if seen.any() else 0.0

    def between(self, first: int, second: int) -> float:
        """The distance of two models of one field."""
        i = self.field_of(first)
        points, start = self.points(i), self.layout.own(i).start
        return float(np.linalg.norm(points[first - start] - points[second - start]))

    def nearest(self, row: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the same field with the most similar models, and their distances."""
        own = self.layout.own(self.field_of(row))
        points, k = self.points(self.field_of(row)), row - own.start
        square = np.einsum("kt,kt->k", points, points) - 2 * (points @ points[k])
        square[k] = np.inf
        square[self.counts[own] == 0] = np.inf
        some = np.argpartition(square, min(n, len(square) - 1))[:n]
        some = some[np.isfinite(square[some])]
        apart = np.linalg.norm(points[some] - points[k], axis=1)
        order = np.argsort(apart, kind="stable")
        return own.start + some[order], apart[order]

    def _seen_often(self, i: int) -> np.ndarray:
        """Rows of a field seen often enough to be shown as partners."""
        own = self.layout.own(i)
        for least in (SEEN, 1, 0):
            found = np.flatnonzero(self.counts[own] >= least)
            if len(found):
                break
        return own.start + found

    def strongest(self, weights: np.ndarray, i: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a field with the highest weights above 0, and the lowest below, n at most."""
        rows = self._often(i)
        found = weights[rows]
        n = min(n, len(rows))
        if n == 0:
            return rows, rows
        ends = np.argpartition(found, (n - 1, len(found) - n))
        low, high = ends[:n], ends[len(found) - n :]
        low, high = low[found[low] < 0], high[found[high] > 0]
        low = low[np.argsort(found[low], kind="stable")]
        high = high[np.argsort(-found[high], kind="stable")]
        return rows[high], rows[low]


def information(loss: str, z: np.ndarray, output: int, noise: float | None) -> float | None:
    """The information of a row about its score z (K,): the curvature of the loss, over the noise's
    variance for the squared loss; None for other losses."""
    if loss in ("logistic", "softmax"):
        p = float(sigmoid(z)[output] if loss == "logistic" else softmax(z)[output])
        return p * (1 - p)
    if loss == "poisson":
        return float(np.exp(z[output]))
    return 1 / noise**2 if loss == "squared" and noise else None


def confidence(main: float, error: float | None) -> float | None:
    """The probability that the sign of an effect is right, if its error is normal."""
    return None if not error else (1 + erf(abs(main) / error / sqrt(2))) / 2


@dataclass(frozen=True)
class Partner:
    """A category of another field: its weight in a category's model, and the effect of the two."""

    category: str
    weight: float
    effect: float
    count: int


@dataclass(frozen=True)
class CategoryCard:
    """A category's own model.

    Attributes
    ----------
    field, category, output : whose model it is.
    count, share : how many rows of training have the category, and what share of all rows that is.
    main : what the category adds to a score on average, by the models of all fields; for a number
        that is kept linear, what one standard deviation adds.
    error : the standard error of `main` from the number of rows alone; None if unknown.
    confidence : the probability that the sign of `main` is right; None without `error`.
    bias : the category's model's score of an average row.
    partners : for every other field, two lists of partner categories, those most in favour and
        those most against. Each has `category`, `weight` (how much the partner raises or lowers
        this model's score), `effect` (what the two add together beyond what each adds alone, by the
        models of both) and `count`.
    nearest : the categories with the most similar models, with their distances.
    distance, typical : how far the model is from the mean of its field's models, and the median of
        that over the field.
    oddity, size : the category's rank by distance, 1 being the farthest, among how many.
    note : a remark on a rare category or a number; else empty.
    """

    field: str
    category: str
    output: str
    count: int
    share: float
    bias: float
    main: float
    error: float | None
    confidence: float | None
    distance: float
    typical: float  # the median of the field
    oddity: int  # 1 for the farthest from the mean of the field
    size: int  # categories of the field
    note: str
    partners: Mapping[str, tuple[Sequence[Partner], Sequence[Partner]]]  # for, against
    nearest: Sequence[tuple[str, float]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON and pages."""
        out = {k: v for k, v in self.__dict__.items() if k not in ("partners", "nearest")}
        out["partners"] = [
            {"field": name, "for": list(map(_row, high)), "against": list(map(_row, low))}
            for name, (high, low) in self.partners.items()
        ]
        return {**out, "nearest": [list(pair) for pair in self.nearest]}

    def plot(self, ax: Any = None) -> Any:
        """Plot its strongest weights with matplotlib; returns the axes."""
        from .figures import plot_card

        return plot_card(self.to_dict(), ax, unit="score")

    def _repr_html_(self) -> str:
        from .html import card_html

        return card_html(self.to_dict())


def _row(partner: Partner) -> list[Any]:
    return [partner.category, partner.weight, partner.effect, partner.count]


@dataclass(frozen=True)
class Difference:
    """A partner category and its weights in two models; `effect` is how much more the first adds
    together with it than the second."""

    field: str
    category: str
    first: float
    second: float
    difference: float
    effect: float
    count: int


@dataclass(frozen=True)
class Comparison:
    """Where the models of two categories of a field differ most.

    Attributes
    ----------
    field, first, second, output : whose models they are.
    differences : the partner categories over which they differ most. Each has `field`, `category`,
        `first` and `second` (its weight in either model), `difference`, `effect` (how much more the
        first adds together with the partner than the second does) and `count`.
    fields : every other field with the root mean square difference of its categories' weights, over
        the training rows.
    counts, bias, main : of the first and of the second; see `CategoryCard`.
    distance : between the two models.
    typical : the median distance of the field's models from their mean.
    """

    field: str
    first: str
    second: str
    output: str
    counts: tuple[int, int]
    bias: tuple[float, float]
    main: tuple[float, float]
    distance: float
    typical: float  # the median distance of the field's models from their mean
    fields: Sequence[tuple[str, float]]
    differences: Sequence[Difference]

    def to_dict(self) -> dict[str, Any]:
        """For JSON and pages."""
        return asdict(self)

    def _repr_html_(self) -> str:
        from .html import comparison_html

        return comparison_html(self.to_dict())
