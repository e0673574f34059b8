"""A bound on the change of a score by compression, over all possible rows.

In the coordinates of `Factors` a row's score before and after are sums over fields and pairs, so

    |z' - z| <= |offsets' - offsets| + sum_i max_f (|b'_f - b_f| + 1/2 sum_{j != i} h_ij(f))
    h_ij(f) = max_g |e_ij(f, g)|

with f, g over everything that fields i and j can hold and e_ij(f, g) = pair'_ij - pair_ij. If there
are not too many, all pairs are computed; otherwise, by Cauchy and Schwarz, for every block of
columns, with e = T' - T of a row:

    |T'_f . T'_g - T_f . T_g| <= |e_f| max_g |T_g| + |T'_f| max_g |e_g|

It holds for the numbers as stored; rounding of sums in float32 comes on top.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.numbers import bin_of
from ..data.vocabulary import FieldVocabulary
from ..model import FieldwiseModel
from ..packed import Packed
from .choice import Choice
from .factors import Factors
from .smaller import kept_columns, unused

__all__ = ["LINEAR_WITHIN", "certificate", "largest_change"]

LINEAR_WITHIN = 10.0  # standard deviations of a linear number that the bound covers
PAIRS, ENTRIES = 1 << 30, 1 << 24  # most pairs of categories, and numbers of a table, for all pairs
PIECE = 1 << 12

Both = tuple[np.ndarray, np.ndarray]  # rows (n, R + K) before and after


def certificate(
    model: FieldwiseModel, factors: Factors, choice: Choice, new: FieldwiseModel
) -> dict[str, Any]:
    """What a compressed model's header records: the bound, its conditions, how it was found."""
    sizes = np.array(model.layout.sizes, np.float64)
    n_pairs = (sizes.sum() ** 2 - (sizes**2).sum()) / 2
    every = n_pairs <= PAIRS and factors.table.size <= ENTRIES
    bound = largest_change(model, factors, choice, new, every=every)
    out: dict[str, Any] = {
        "largest_change": float(bound.max()),
        "by": "all pairs of categories" if every else "norms of rows",
    }
    if any(f.is_linear and not f.cross for f in model.schema.fields):
        out["linear_within"] = LINEAR_WITHIN
    if model.boosted is not None:
        out["of_the_score_trees_read"] = out["largest_change"]
        out["largest_change"] = model.boosted.span()
    return out


def largest_change(
    model: FieldwiseModel, factors: Factors, choice: Choice, new: FieldwiseModel, *, every: bool
) -> np.ndarray:
    """(K,) the bound"""
    rows = _BeforeAndAfter(model, factors, choice, new)
    layout, R = factors.layout, factors.layout.n_columns
    constant = new.offsets - factors.offsets - unused(factors, choice)[:, R:].sum(axis=0)
    out = np.abs(constant)
    pairs = _every_pair(rows) if every else _by_norms(rows)
    for i in range(layout.n_fields):
        before, after = rows(i)
        bias = np.abs(after[:, R:] - before[:, R:])
        out += (bias + pairs[i] / 2).max(axis=0)
    return out


class _BeforeAndAfter:
    """Everything a field can hold, as rows before and after compression."""

    def __init__(
        self, model: FieldwiseModel, factors: Factors, choice: Choice, new: FieldwiseModel
    ) -> None:
        self.layout, self._model, self._factors = factors.layout, model, factors
        self._choice, self._new = choice, new
        self._unused = unused(factors, choice)
        self._kept = [i for i, stays in enumerate(choice.fields) if stays]
        assert isinstance(new.stored, Packed)
        self._stored = new.stored
        self._columns = kept_columns(self.layout, choice, self._kept)

    def __call__(self, i: int) -> Both:
        """(n, R + K) each: for every code and for unseen values, times the largest values"""
        layout, field = self.layout, self._model.schema.fields[i]
        own = layout.own(i)
        unseen = slice(layout.n_rows + i, layout.n_rows + i + 1)
        before = np.concatenate([self._factors.exact(i, own), self._factors.exact(i, unseen)])
        after = self._after(i)
        if field.cross:
            words: Any = self._model.vocabulary
            number = i - len(words.base.fields)
            return self._of_evidence(words.own[number], number, before, after)
        most = np.ones(len(before))
        if field.is_linear:
            most[0] = LINEAR_WITHIN
        elif field.is_list and field.pooling == "sum":
            most[:] = field.n_slots
        before *= most[:, None]
        if i in self._kept:
            return before, after * most[:, None]
        if self._factors.is_valued[i]:  # values of either sign have the same row after
            return np.concatenate([before, -before]), np.concatenate([after, after])
        return before, after

    def _after(self, i: int) -> np.ndarray:
        out = np.zeros((self.layout.sizes[i] + 1, self.layout.width))
        if i not in self._kept:
            out[:, self.layout.n_columns :] = self._unused[i, self.layout.n_columns :]
            return out
        k, new = self._kept.index(i), self._new.layout
        at = np.append(new.own(k).start + self._choice.rows[i], new.n_rows + k)
        out[:, self._columns] = self._stored.decoded(at)
        return out

    def _of_evidence(
        self, own: FieldVocabulary, number: int, before: np.ndarray, after: np.ndarray
    ) -> Both:
        """Crossed categories that are kept have the evidence they had; the others have none."""
        words: Any = self._model.vocabulary
        k, t = divmod(number % (len(words.evidence) * words.evidence.n_targets),
                      words.evidence.n_targets)  # fmt: skip
        known = words.evidence.said(k)[:, t].astype(np.float64)
        stays = self._choice.crosses[k] if self._choice.crosses else np.ones(len(known), bool)
        kept, gone, none = np.append(known[stays], 0.0), known[~stays], np.zeros(1)
        if own.field.is_linear:
            values = own.scaled(np.array([kept.min(), kept.max()]))
            lost = own.scaled(np.array([gone.min(), gone.max()])) if len(gone) else np.empty(0)
            now = np.concatenate([values, np.repeat(own.scaled(none), len(lost))])
            return np.outer(np.concatenate([values, lost]), before[0]), np.outer(now, after[0])
        edges = own.field.edges or ()
        lost = np.unique(1 + bin_of(gone, edges)) if len(gone) else np.empty(0, int)
        codes = np.arange(len(before))
        now = np.concatenate([codes, np.repeat(1 + bin_of(none, edges), len(lost))])
        return before[np.concatenate([codes, lost]).astype(int)], after[now.astype(int)]


def _every_pair(rows: _BeforeAndAfter) -> list[np.ndarray]:
    """For every field (n, K): the sum over other fields of max_g |e_ij(f, g)|"""
    layout, m = rows.layout, rows.layout.n_fields
    every = [rows(i) for i in range(m)]
    out = [np.zeros((len(before), layout.n_outputs)) for before, _ in every]
    for o in range(layout.n_outputs):
        for i in range(m):
            for j in range(i):
                both = np.r_[layout.block(o, i), layout.block(o, j)]
                left = np.concatenate([every[i][0][:, both], every[i][1][:, both]], axis=1)
                right = np.concatenate([every[j][0][:, both], -every[j][1][:, both]], axis=1)
                most = np.zeros(len(right))
                for low in range(0, len(left), PIECE):
                    part = slice(low, low + PIECE)
                    apart = np.abs(left[part] @ right.T)
                    out[i][part, o] += apart.max(axis=1)
                    most = np.maximum(most, apart.max(axis=0))
                out[j][:, o] += most
    return out


def _by_norms(rows: _BeforeAndAfter) -> list[np.ndarray]:
    """Upper bounds of the same, from the norms of rows in every block of columns"""
    layout, m, K = rows.layout, rows.layout.n_fields, rows.layout.n_outputs
    most_before, most_apart = np.zeros((m, K * m)), np.zeros((m, K * m))
    found = []
    for i in range(m):
        before, after = rows(i)
        apart = _norms(layout, after - before)
        most_before[i] = _norms(layout, before).max(axis=0)
        most_apart[i] = apart.max(axis=0)
        found.append((apart.astype(np.float32), _norms(layout, after).astype(np.float32)))
    out = []
    for i, (apart, after) in enumerate(found):
        total = np.zeros((len(apart), K))
        for o in range(K):
            for j in range(m):
                for b in {o * m + i, o * m + j} if j != i else ():
                    total[:, o] += apart[:, b] * most_before[j, b] + after[:, b] * most_apart[j, b]
        out.append(total * (1 + 1e-6))  # for the norms' rounding to float32
    return out


def _norms(layout: Any, rows: np.ndarray) -> np.ndarray:
    """(n, K m) the norms of rows in every block of columns"""
    blocks = range(layout.n_outputs * layout.n_fields)
    parts = [rows[:, layout.starts[b] : layout.starts[b + 1]] for b in blocks]
    return np.stack([np.sqrt((part**2).sum(axis=1)) for part in parts], axis=1)
