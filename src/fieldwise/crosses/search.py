"""Searches for useful crosses: pairs first, then longer ones grown from the best.

A candidate is judged by what its cross-fitted evidence adds to that of the crosses chosen before
(forward selection of a linear model of y, on a sample of rows), so that near copies of a chosen one
are worth nothing. Crosses grow by one field at a time, from the chosen ones and from those best by
themselves, as long as a longer one is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import comb

import numpy as np

from ..blas import weighted_sum
from ..progress import progress
from .evidence import FOLDS, Observed, draw_folds, folded_totals, per_cross

__all__ = ["find_crosses"]

SAMPLE = 30_000  # rows on which candidates are judged
MOST_ROWS = 1_000_000  # rows from which the evidence of candidates is computed
BEAM = 12  # crosses that are grown, of those chosen and of those best by themselves
POOL = 200  # candidates that `add` keeps, of the old and of the new ones each
LONGEST = 8  # fields
PAIRS = 2_000  # about so many are tried; with more, only those of the fields best by themselves
TRIPLES = 300  # all are tried if there are no more
LIMIT = 64  # crosses chosen
# The gain of the best of c worthless candidates is about 2 log c in units of noise. One cross must
# be well above that, or none is chosen; then others may be a little below, because models can
# ignore what they do not need.
SURE, SLACK = 10.0, 2.0
TINY = 1e-12  # no spread at all
LEFT = 0.01  # the share of its variance that a candidate must have left beside the chosen

Cross = tuple[int, ...]


def find_crosses(
    rows: Observed,
    slots: Sequence[int],
    *,
    seed: int = 0,
    longest: int = LONGEST,
    limit: int = LIMIT,
    n_jobs: int | None = None,
    show: bool | None = False,
) -> list[Cross]:
    """The best crosses of two slots or more, best first; `slots` are those that may be crossed.
    Empty if none adds to what the fields explain by themselves."""
    rows = _thinned(rows, seed)
    search = _Search(rows, seed, n_jobs)
    singles: list[Cross] = [(j,) for j in slots]
    search.add(singles)
    search.add(_pairs(search, singles))
    if comb(len(slots), 3) <= TRIPLES:  # whose pairs may say nothing
        search.add(combinations(slots, 3))
    length, chosen = 2, search.choose(limit)
    with progress("crosses", min(longest, len(slots)), show=show) as tell:
        while length < min(longest, len(slots)) and any(len(c) >= length for c in chosen):
            tell(length, f"{len(chosen)} of {search.n_tried:,}")
            seeds = [c for c in chosen if len(c) == length][:BEAM]
            seeds += [c for c in search.best() if len(c) == length][:BEAM]
            search.add(_grown(dict.fromkeys(seeds), slots))
            length, chosen = length + 1, search.choose(limit)
    return chosen


def _pairs(search: _Search, singles: Sequence[Cross]) -> list[Cross]:
    """All pairs, or if they are too many, those of the fields that are best by themselves."""
    few = int(np.sqrt(2 * PAIRS)) + 1
    kept = sorted(search.best()[:few]) if len(singles) > few else singles
    return list(combinations((slot for (slot,) in kept), 2))


def _grown(seeds: Iterable[Cross], slots: Sequence[int]) -> list[Cross]:
    """Every seed with one more slot, each cross once."""
    longer = (tuple(sorted((*c, j))) for c in seeds for j in slots if j not in c)
    return list(dict.fromkeys(longer))


def _thinned(rows: Observed, seed: int) -> Observed:
    """The rows, or `MOST_ROWS` of them drawn at random, in their order."""
    if len(rows.y) <= MOST_ROWS:
        return rows
    bits = np.random.Philox(np.random.SeedSequence([seed, 402])).random_raw(len(rows.y))
    kept = np.sort(np.argsort(bits, kind="stable")[:MOST_ROWS])
    return Observed(rows.codes[kept], rows.y[kept], rows.w[kept])


class _Search:
    """Candidates with their evidence on a sample of rows: centred, and of mean square 1."""

    def __init__(self, rows: Observed, seed: int, n_jobs: int | None) -> None:
        self._rows, self._n_jobs = rows, n_jobs
        self._fold = draw_folds(len(rows.y), seed)
        self._around = folded_totals(rows, self._fold, FOLDS)
        mean = weighted_sum(rows.w, rows.y) / rows.w.sum()
        self._whole = (mean, weighted_sum(rows.w, (rows.y - mean) ** 2))
        bits = np.random.Philox(np.random.SeedSequence([seed, 403])).random_raw(len(rows.y))
        self._sample = np.sort(np.argsort(bits, kind="stable")[:SAMPLE])
        w = rows.w[self._sample]
        self._root = np.sqrt(w / w.sum())[:, None]
        y = rows.y[self._sample]
        y = y - weighted_sum(w, y) / w.sum()
        spread = np.sqrt(weighted_sum(w, y**2) / w.sum())
        # Outputs count equally, each in units of its own spread.
        self._y = self._root * y / np.where(spread > 0, spread, 1.0)
        self._n_targets = y.shape[1]
        self._pool: list[Cross] = []
        self._columns = np.empty((len(self._sample), 0), np.float32)  # T columns per candidate
        self._chosen: list[Cross] = []
        self._tried: set[Cross] = set()

    @property
    def n_tried(self) -> int:
        return len(self._tried)

    def add(self, crosses: Iterable[Cross]) -> None:
        """Add candidates, and keep the best."""
        fresh = [cross for cross in crosses if cross not in self._tried]
        self._tried.update(fresh)
        if not fresh:
            return
        columns = np.concatenate(list(per_cross(self._column, fresh, self._n_jobs)), axis=1)
        old, new = self._kept(self._pool, self._columns), self._kept(fresh, columns)
        self._pool = old[0] + new[0]
        self._columns = np.concatenate([old[1], new[1]], axis=1)

    def _kept(self, pool: list[Cross], columns: np.ndarray) -> tuple[list[Cross], np.ndarray]:
        """The candidates to keep: the best by themselves, those chosen, and single fields."""
        order = np.argsort(-self._worth(columns), kind="stable").tolist()
        chosen = set(self._chosen)
        kept = [i for i in order if pool[i] in chosen or len(pool[i]) == 1]
        kept += [i for i in order if pool[i] not in chosen and len(pool[i]) > 1][:POOL]
        T = self._n_targets
        return [pool[i] for i in kept], columns[:, [i * T + t for i in kept for t in range(T)]]

    def _worth(self, columns: np.ndarray) -> np.ndarray:
        """(c,) the share of y's variance that a candidate's evidence explains by itself"""
        T = self._n_targets
        each = (columns.T @ self._y.astype(np.float32)).reshape(-1, T, T)
        own: np.ndarray = (np.einsum("ctt->ct", each).astype(np.float64) ** 2).sum(axis=1)
        return own

    def _column(self, cross: Cross) -> np.ndarray:
        """(sample, T) the cross-fitted evidence of a candidate, centred and of mean square 1"""
        from . import _kernels

        rows = self._rows
        group, first = _kernels.grouped(_kernels.keys_of(rows.codes, np.array(cross)))
        count, total = _kernels.fold_sums(group, len(first), self._fold, FOLDS, rows.y, rows.w)
        mean, _ = self._around
        a = _kernels.shrinkage(count.sum(axis=1), total.sum(axis=1), *self._whole)
        shrink = np.broadcast_to(a, mean.shape)
        found = _kernels.held_out(group, self._fold, count, total, mean, shrink, self._sample)[0]
        found = found - (self._root**2 * found).sum(axis=0)
        spread = np.sqrt((self._root**2 * found**2).sum(axis=0))
        out: np.ndarray = self._root * found / np.where(spread > TINY, spread, np.inf)
        return out.astype(np.float32)

    def best(self) -> list[Cross]:
        """The candidates, those that explain most by themselves first."""
        order = np.argsort(-self._worth(self._columns), kind="stable")
        return [self._pool[i] for i in order]

    def choose(self, limit: int) -> list[Cross]:
        """Forward selection: repeatedly take the candidate that adds most."""
        T = self._n_targets
        gram = (self._columns.T @ self._columns).astype(np.float64)
        b = (self._columns.T @ self._y).astype(np.float64)  # (c T, T)
        n, left = len(self._sample), float(T)
        by_chance = 2 * np.log(max(self.n_tried, 2))
        chosen: list[int] = []
        surest = 0.0
        for _ in range(len(self._pool)):
            own = np.diagonal(gram)
            gain = np.where(own > LEFT, (b**2).sum(axis=1), 0.0) / np.maximum(own, LEFT)
            at = int(np.argmax(gain))
            found = n * gain[at] * T / max(left, 1e-12)
            if found < by_chance - SLACK:
                break
            if len(self._pool[at // T]) > 1:
                surest = max(surest, found)
            chosen.append(at)
            left -= float(gain[at])
            column = gram[:, at] / np.sqrt(gram[at, at])
            step = b[at] / np.sqrt(gram[at, at])
            gram -= np.outer(column, column)
            b -= np.outer(column, step)
            gram[at], gram[:, at], b[at] = 0.0, 0.0, 0.0
        picked = list(dict.fromkeys(self._pool[i // T] for i in chosen))
        crosses = [c for c in picked if len(c) > 1] if surest > by_chance + SURE else []
        self._chosen = crosses[:limit]
        return self._chosen
