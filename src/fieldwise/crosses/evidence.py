"""Evidence of crosses: sums over crossed categories, cross-fitted for the training rows.

For a row with crossed category k, over the rows of the other folds (for new rows, over all training
rows):

    evidence = sum of w (y - mean) over the rows of k / (sum of w over them + a)

`maths.evidence` is the definition; `a` is chosen by empirical Bayes, for every cross and fold. A
crossed category that was never seen has evidence 0.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..blas import weighted_sum
from ..errors import ModelError

__all__ = ["Evidence", "Fitted", "Observed", "draw_folds", "folded_totals"]

FOLDS = 10
FORGOTTEN = 0.01  # crossed categories with less weight are dropped


@dataclass(frozen=True)
class Observed:
    """Rows to learn evidence from: codes (n, S), targets y (n, T) and weights w (n,)"""

    codes: np.ndarray
    y: np.ndarray
    w: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, y: np.ndarray, w: np.ndarray | None = None) -> Observed:
        y = np.ascontiguousarray(y, np.float64)
        w = np.ones(len(y)) if w is None else np.ascontiguousarray(w, np.float64).reshape(-1)
        return cls(np.ascontiguousarray(codes, np.int32), y.reshape(len(y), -1), w)


@dataclass(frozen=True)
class Fitted:
    """Evidence (n, c, T) of rows, and the weight (n, c) it is based on."""

    evidence: np.ndarray
    seen: np.ndarray


def draw_folds(n_rows: int, seed: int, n_folds: int = FOLDS) -> np.ndarray:
    """(n,) a random fold for every row; the same on every machine."""
    bits = np.random.Philox(np.random.SeedSequence([seed, 401])).random_raw(n_rows)
    return (bits >> np.uint64(33)).astype(np.int64) % n_folds


def folded_totals(rows: Observed, fold: np.ndarray, n_folds: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the sum of squared residuals, (F, T) each, of all rows but those of a fold"""
    n_targets = rows.y.shape[1]
    n = np.bincount(fold, rows.w, n_folds)
    y, y2 = np.empty((n_folds, n_targets)), np.empty((n_folds, n_targets))
    for t in range(n_targets):
        y[:, t] = np.bincount(fold, rows.w * rows.y[:, t], n_folds)
        y2[:, t] = np.bincount(fold, rows.w * rows.y[:, t] ** 2, n_folds)
    # Sum over the other folds, not the whole minus one: no bit of the fold is in it.
    others = 1.0 - np.eye(n_folds)
    left = np.array([np.sum(n[row > 0]) for row in others])[:, None]
    sums = np.array([y[row > 0].sum(axis=0) for row in others])
    squares = np.array([y2[row > 0].sum(axis=0) for row in others])
    mean = sums / np.maximum(left, 1e-300)
    return mean, np.maximum(squares - mean * sums, 0.0)


def per_cross(
    work: Callable[[Any], Any], crosses: Sequence[Any], n_jobs: int | None
) -> Iterator[Any]:
    """Yield `work` of every cross, in order, computed in threads."""
    with ThreadPoolExecutor(n_jobs) as pool:
        yield from pool.map(work, crosses)


@dataclass
class _Known:
    """The crossed categories of a cross: codes (g, k), weight (g,), weighted residuals (g, T)"""

    codes: np.ndarray
    count: np.ndarray
    total: np.ndarray

    def hashed(self) -> tuple[np.ndarray, np.ndarray]:
        """The keys, and their hash table for `_kernels.looked_up`."""
        from . import _kernels

        keys = _kernels.keys_of(self.codes, np.arange(self.codes.shape[1]))
        return keys, _kernels.placed(keys)

    def find(self, codes: np.ndarray, cross: np.ndarray) -> np.ndarray:
        from . import _kernels

        keys, slots = self.hashed()
        return _kernels.looked_up(_kernels.keys_of(codes, cross), slots, keys)


class Evidence:
    """The evidence of crossed categories, for crosses of slots of a table's codes."""

    def __init__(
        self,
        crosses: Sequence[tuple[int, ...]],
        shrink: np.ndarray,
        known: Sequence[_Known],
        mean: np.ndarray | None = None,
    ) -> None:
        self.crosses = tuple(tuple(cross) for cross in crosses)
        self.shrink = shrink  # (c, T)
        self.mean = mean  # (T,) that residuals are from; None if it was not kept
        self._known = list(known)

    def __len__(self) -> int:
        return len(self.crosses)

    @property
    def n_targets(self) -> int:
        return self.shrink.shape[1]

    @property
    def codes(self) -> list[np.ndarray]:
        """For every cross, the codes of its crossed categories, (g, k)."""
        return [known.codes for known in self._known]

    @property
    def counts(self) -> list[np.ndarray]:
        """For every cross, the weights of its crossed categories, (g,)."""
        return [known.count for known in self._known]

    @classmethod
    def learn(
        cls,
        rows: Observed,
        crosses: Sequence[tuple[int, ...]],
        folds: Sequence[np.ndarray] = (),
        n_folds: int = FOLDS,
        n_jobs: int | None = None,
    ) -> tuple[Evidence, list[Fitted]]:
        """The evidence, and for every assignment of rows to folds the rows' own, cross-fitted."""
        from . import _kernels

        n, n_targets = len(rows.y), rows.y.shape[1]
        together = np.zeros(n, np.int64)
        mean = weighted_sum(rows.w, rows.y) / max(rows.w.sum(), 1e-300)
        square = weighted_sum(rows.w, (rows.y - mean) ** 2)
        around = [folded_totals(rows, fold, n_folds) for fold in folds]
        fitted = [
            Fitted(
                np.zeros((n, len(crosses), n_targets), np.float32),
                np.zeros((n, len(crosses)), np.float32),
            )
            for _ in folds
        ]
        every = np.arange(n)

        def one(numbered: tuple[int, tuple[int, ...]]) -> tuple[np.ndarray, _Known]:
            k, cross = numbered
            group, first = _kernels.grouped(_kernels.keys_of(rows.codes, np.array(cross)))
            g = len(first)
            count, total = _kernels.fold_sums(group, g, together, 1, rows.y, rows.w)
            count, total = count[:, 0], total[:, 0]
            a = _kernels.shrinkage(count, total, mean, square)
            for fold, (means, squares), out in zip(folds, around, fitted, strict=True):
                c, s = _kernels.fold_sums(group, g, fold, n_folds, rows.y, rows.w)
                shrink = _kernels.fold_shrinkage(c, s, means, squares)
                found = _kernels.held_out(group, fold, c, s, means, shrink, every)
                out.evidence[:, k], out.seen[:, k] = found
            codes = np.ascontiguousarray(rows.codes[first][:, list(cross)])
            return a, _Known(codes, count, total - mean * count[:, None])

        parts = list(per_cross(one, list(enumerate(crosses)), n_jobs))
        shrink = np.array([a for a, _ in parts]).reshape(len(crosses), n_targets)
        return cls(crosses, shrink, [known for _, known in parts], mean), fitted

    def of(self, codes: np.ndarray) -> Fitted:
        """The evidence of new rows."""
        from . import _kernels

        if not self.crosses:
            n = len(codes)
            return Fitted(
                np.zeros((n, 0, self.n_targets), np.float32), np.zeros((n, 0), np.float32)
            )
        return Fitted(*_kernels.told(np.ascontiguousarray(codes, np.int32), *self._flat))

    @cached_property
    def _flat(self) -> tuple[np.ndarray, ...]:
        """What `_kernels.told` takes besides codes: all crosses, one after the other."""
        keys, slots = zip(*(known.hashed() for known in self._known), strict=True)
        evidence = [self.said(k) for k in range(len(self))]
        members = [np.array(cross) for cross in self.crosses]
        sizes = [list(map(len, parts)) for parts in (members, slots, keys)]
        ends = np.vstack([np.zeros((1, 3), int), np.cumsum(sizes, axis=1).T])
        parts = (members, slots, keys, evidence)
        weight = np.concatenate([k.count for k in self._known]).astype(np.float32)
        return (*map(np.concatenate, parts), weight, ends)

    def said(self, k: int) -> np.ndarray:
        """(g, T) float32, the evidence of cross k's crossed categories for new rows"""
        known = self._known[k]
        found: np.ndarray = known.total / (known.count[:, None] + self.shrink[k])
        return found.astype(np.float32)

    def kept(self, which: Sequence[np.ndarray]) -> Evidence:
        """A copy with only some crossed categories, a mask (g,) for each cross; the others count as
        never seen."""
        pairs = zip(self._known, which, strict=True)
        some = [_Known(a.codes[mask], a.count[mask], a.total[mask]) for a, mask in pairs]
        return Evidence(self.crosses, self.shrink, some, self.mean)

    def recoded(self, codes_of: Mapping[int, np.ndarray]) -> Evidence:
        """A copy for a table whose codes in some slots have changed; `codes_of` maps old to new."""
        known = []
        for cross, one in zip(self.crosses, self._known, strict=True):
            codes = one.codes.copy()
            for k, slot in enumerate(cross):
                if slot in codes_of:
                    codes[:, k] = codes_of[slot][codes[:, k]]
            known.append(_Known(codes, one.count, one.total))
        return Evidence(self.crosses, self.shrink, known, self.mean)

    def joined(
        self, rows: Observed, mean: np.ndarray, *, keep: float = 1.0, n_jobs: int | None = None
    ) -> Evidence:
        """A copy that has also learned from `rows`; what was known counts `keep` times as much as
        before. Residuals are from `mean` (T,), and `a` stays. Crossed categories with a weight of
        less than a hundredth of a row are dropped."""
        from . import _kernels

        together = np.zeros(len(rows.y), np.int64)

        def one(numbered: tuple[int, tuple[int, ...]]) -> _Known:
            k, cross = numbered
            old, slots = self._known[k], np.array(cross)
            group, first = _kernels.grouped(_kernels.keys_of(rows.codes, slots))
            count, total = _kernels.fold_sums(group, len(first), together, 1, rows.y, rows.w)
            count, total = count[:, 0], total[:, 0] - mean * count
            at = old.find(rows.codes[first], slots)
            met = at >= 0
            sums, residuals = keep * old.count, keep * old.total
            sums[at[met]] += count[met]
            residuals[at[met]] += total[met]
            fresh = rows.codes[first[~met]][:, slots]
            codes = np.concatenate([old.codes, fresh])
            sums = np.concatenate([sums, count[~met]])
            residuals = np.concatenate([residuals, total[~met]])
            left = sums >= FORGOTTEN
            return _Known(np.ascontiguousarray(codes[left]), sums[left], residuals[left])

        known = list(per_cross(one, list(enumerate(self.crosses)), n_jobs))
        return Evidence(self.crosses, self.shrink, known, mean)

    def to_bytes(self) -> bytes:
        """Parquet: cross, codes, count, total."""
        import polars as pl

        frames = [
            pl.DataFrame(
                {
                    "cross": np.full(len(known.count), k, np.int32),
                    "codes": pl.Series(values=known.codes).arr.to_list(),
                    "count": known.count,
                    "total": pl.Series(values=known.total).arr.to_list(),
                }
            )
            for k, known in enumerate(self._known)
        ]
        out = io.BytesIO()
        pl.concat(frames).write_parquet(out, compression="zstd", statistics=False)
        return out.getvalue()

    @classmethod
    def from_bytes(
        cls,
        crosses: Sequence[Sequence[int]],
        shrink: np.ndarray,
        content: bytes,
        mean: np.ndarray | None = None,
    ) -> Evidence:
        from ..data.chunks import UNREADABLE, unpacked

        shrink = np.asarray(shrink, np.float64)
        try:
            frame = unpacked(content)
            parts = {k[0]: v for k, v in frame.partition_by("cross", as_dict=True).items()}
            known = []
            for k, cross in enumerate(crosses):
                part = parts.get(k, frame.clear())
                if any(part[name].has_nulls() for name in part.columns):
                    raise ModelError(f"the statistics of cross {k} have gaps")
                codes = part["codes"].list.to_array(len(cross)).to_numpy()
                total = part["total"].list.to_array(shrink.shape[1]).to_numpy()
                known.append(
                    _Known(
                        np.ascontiguousarray(codes, np.int32),
                        part["count"].to_numpy().astype(np.float64),
                        np.ascontiguousarray(total, np.float64),
                    )
                )
        except (*UNREADABLE, ValueError, LookupError, TypeError) as error:
            raise ModelError(f"the statistics of crosses are damaged: {error!r}") from error
        return cls([tuple(cross) for cross in crosses], shrink, known, mean)
