"""A table in coordinates ordered by how much they matter, with unchanged scores.

Means: a field's mean row (weighted by how often categories were seen) is taken from its rows; its
part of scores moves to the biases of rows and to the offsets, where it is exact. With ~T the
remaining rows, M the means and g_j = `maths.main_slopes` of them,

    z = offsets + sum_{i < j} pair_ij(M, M) + sum_j ~T[f_j] . g_j + sum_{i < j} pair_ij(~T, ~T)

Fields whose slots carry values keep their rows as they are (M = 0), because values do not sum to 1.

Rotation: a block is V U^T with V (d_i, r) the field's own rows and U (d - d_i, r) all others'. With
each row weighted by the root of its share, QR gives V = Q1 R1 and U = Q2 R2, and R1 R2^T = X S Y^T.
Then V R2^T Y S^-1/2 and U R1^T X S^-1/2 have the same products as V and U, and column t of them
adds S_t^2 to the mean square of the score, if fields are independent. W = V U^T is never formed.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from .. import maths
from ..explain.rows import Marginals
from ..layout import Layout
from ..model import FieldwiseModel

__all__ = ["Factors"]

NOTHING = 1e-12  # of a block's largest singular value: smaller ones are rounding errors


class Factors:
    """table (d + m, R + K) float32 in the new coordinates, offsets (K,), worth (R,) the singular
    value of every column, shares (d,) how often each row occurs, weights (d,) its mean value."""

    def __init__(self, model: FieldwiseModel) -> None:
        layout = self.layout = model.layout
        self._rows = model.rows
        self.counts = model.vocabulary.counts()
        valued = model.schema.valued
        self.is_valued = np.isin(np.arange(layout.n_fields), layout.slot_owner[valued])
        marginals = Marginals.of_counts(layout, self.counts, model.moments, valued)
        self.weights = marginals.weight
        self.shares = _smooth(layout, self.counts, marginals.square, self.is_valued)
        means = maths.field_means(self._rows, layout, self.weights)
        means[self.is_valued] = 0
        means[:, layout.n_columns :] = 0  # biases stay where they are
        self._means = means
        self._slopes = [maths.main_slopes(layout, means, j) for j in range(layout.n_fields)]
        pairs = maths.pair_effects(layout, means[None], means[None])[0]
        self.offsets = model.offsets + pairs.sum(axis=(1, 2)) / 2
        self._turn()
        self.table = np.empty(self._rows.shape, np.float32)
        for j in range(layout.n_fields):
            last = layout.n_rows + j
            for part in (*maths.pieces(layout.own(j)), slice(last, last + 1)):
                self.table[part] = self.exact(j, part)
        self._balance()

    def exact(self, j: int, part: slice) -> np.ndarray:
        """Some rows of field j in the new coordinates, (n, R + K) float64; row d + j is its mean"""
        out, layout = self._centred(j, part), self.layout
        for b, (own, other) in enumerate(zip(self._own, self._other, strict=True)):
            o, i = divmod(b, layout.n_fields)
            columns = layout.block(o, i)
            out[:, columns] = out[:, columns] @ (own if i == j else other)
        return out

    def _centred(self, j: int, part: slice) -> np.ndarray:
        out = self._rows[part].astype(np.float64) - self._means[j]
        out[:, self.layout.n_columns :] = out @ self._slopes[j]
        return out

    def _turn(self) -> None:
        layout, m = self.layout, self.layout.n_fields
        blocks = [layout.block(o, i) for o in range(layout.n_outputs) for i in range(m)]
        sizes = [t.stop - t.start for t in blocks]
        owned, others = ([np.zeros((r, r)) for r in sizes] for _ in range(2))
        for j in range(m):
            for part in maths.pieces(layout.own(j)):
                rows = self._centred(j, part) * np.sqrt(self.shares[part])[:, None]
                for b, t in enumerate(blocks):
                    triangles = owned if b % m == j else others
                    stacked = np.vstack([triangles[b], rows[:, t]])
                    triangles[b] = np.asarray(np.linalg.qr(stacked, mode="r"))
        self.worth = np.zeros(layout.n_columns)
        self._own, self._other = [], []
        for t, mine, theirs in zip(blocks, owned, others, strict=True):
            X, S, Yt = np.linalg.svd(mine @ theirs.T)
            S[NOTHING * S.max(initial=0.0) >= S] = 0
            root = np.divide(1.0, np.sqrt(S), out=np.zeros_like(S), where=S > 0)
            self.worth[t] = S
            self._own.append(theirs.T @ (Yt.T * root))
            self._other.append(mine.T @ (X * root))

    def _balance(self) -> None:
        """Scale every column of V against that of U so that entries of V are as large as those of
        the field with the largest of U: then one scale suits a whole row. Sets `lean` (R,), the
        mean square of a column of V over its worth; that of U, summed over fields, is 1 / lean.
        """
        layout, R = self.layout, self.layout.n_columns
        largest = np.zeros(R)
        for j in range(layout.n_fields):
            own = layout.own(j)
            square = self.shares[own] @ self.table[own, :R].astype(np.float64) ** 2
            largest = np.maximum(largest, np.where(layout.owner == j, 0.0, square))
        share = np.divide(largest, self.worth, out=np.ones(R), where=self.worth > 0)
        self.lean = np.sqrt(np.clip(share, 1 / max(layout.n_fields - 1, 1), 1.0))
        for b in range(len(self._own)):
            columns = slice(*layout.starts[b : b + 2])
            self._own[b] = self._own[b] * np.sqrt(self.lean[columns])
            self._other[b] = self._other[b] / np.sqrt(self.lean[columns])
        for j in range(layout.n_fields):
            factor = np.where(layout.owner == j, np.sqrt(self.lean), 1 / np.sqrt(self.lean))
            for part in (layout.own(j), slice(layout.n_rows + j, layout.n_rows + j + 1)):
                self.table[part, :R] *= factor.astype(np.float32)

    def column_effects(self) -> list[np.ndarray]:
        """For every field (r_i,): what each of its ranks adds to the mean square of scores"""
        layout = self.layout
        return [
            sum((self.worth[layout.block(o, i)] ** 2 for o in range(layout.n_outputs)), np.zeros(r))
            for i, r in enumerate(layout.ranks)
        ]

    def row_effects(self, kept: np.ndarray) -> np.ndarray:
        """(d,) the mean square change of scores when a row is replaced by its field's mean, times
        how often it occurs; over the columns that `kept` (R,) has true

        With p and q of the other fields it is the mean of (db + dT_own . p + dT_other . q)^2.
        """
        layout, R = self.layout, self.layout.n_columns
        out = np.empty(layout.n_rows)
        as_other = self.worth * self.lean
        for i in range(layout.n_fields):
            own = layout.owner == i
            weight = np.where(own, as_other / self.lean**2, as_other).astype(np.float32)
            middle = self.middle(i)[R:]
            for part in maths.pieces(layout.own(i)):
                rows = np.where(kept, self.table[part, :R], np.float32(0))
                bias = self.table[part, R:] - middle
                square = (rows**2) @ weight + (bias**2).sum(axis=1)
                for o, across in enumerate(self._across):
                    whole, block = layout.columns(o), layout.block(o, i)
                    inside = slice(block.start - whole.start, block.stop - whole.start)
                    both = rows[:, block] @ across[inside]
                    both[:, inside] = 0
                    square += 2 * (both * rows[:, whole]).sum(axis=1)
                out[part] = self.shares[part] * square
        return out

    @cached_property
    def _across(self) -> list[np.ndarray]:
        """For every output (R_o, R_o): the mean of U_t V_s over the field that owns column s. The
        two products of a pair of rows, by one's V and by the other's, are correlated."""
        layout = self.layout
        out = []
        for o in range(layout.n_outputs):
            whole = layout.columns(o)
            found = np.zeros((whole.stop - whole.start,) * 2, np.float32)
            for j in range(layout.n_fields):
                block = layout.block(o, j)
                inside = slice(block.start - whole.start, block.stop - whole.start)
                for part in maths.pieces(layout.own(j)):
                    rows = self.table[part, whole] * self.shares[part, None].astype(np.float32)
                    found[:, inside] += rows.T @ self.table[part, block]
            out.append(found)
        return out

    def middle(self, j: int) -> np.ndarray:
        """(R + K,) the mean row of field j, weighted by values"""
        own = self.layout.own(j)
        found: np.ndarray = self.weights[own] @ self.table[own].astype(np.float64)
        return found


def _smooth(
    layout: Layout, counts: np.ndarray, square: np.ndarray, is_valued: np.ndarray
) -> np.ndarray:
    """(d,) how often rows occur, smoothed so that rows rare in training do not seem impossible"""
    out = np.empty(layout.n_rows)
    for i in range(layout.n_fields):
        own = layout.own(i)
        count = counts[own] + 1.0
        out[own] = np.maximum(square[own], 1e-9) if is_valued[i] else count / count.sum()
    return out
