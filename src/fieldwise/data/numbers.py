"""Statistics of a numeric column in one pass, in bounded memory, independent of the order of rows.

`Histogram` counts values, exactly up to `LIMIT` distinct ones, beyond that rounded. `ExactSum` adds
floats without rounding. Both give the same result for the same values in any order, so bins and
scales do not depend on how a table was cut or sorted.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np

__all__ = ["ExactSum", "Histogram", "bin_labels", "bin_of"]

LIMIT = 1 << 16


def _ordered(values: np.ndarray) -> np.ndarray:
    """float64 -> int64 that sorts the same (the sign bit flips the rest)."""
    bits = (values + 0.0).view(np.int64)  # + 0.0 turns -0.0 into 0.0
    return bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))


def _unordered(keys: np.ndarray) -> np.ndarray:
    return (keys ^ ((keys >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))).view(np.float64)


def _merge(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    unique, where = np.unique(keys, return_inverse=True)
    total = np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, where, counts)
    return unique, total


class Histogram:
    """Counts of distinct values; with too many of them low bits are dropped, one at a time.

    It drops as few bits as all values seen allow: a part of them never needs to drop more than the
    whole, so the order of `add` does not matter.
    """

    def __init__(self) -> None:
        self._keys = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)
        self._dropped = 0

    def add(self, values: np.ndarray) -> None:
        """Count values (n,) float64, without NaN."""
        values = values[~np.isnan(values)]
        keys, counts = np.unique(_ordered(values) >> self._dropped, return_counts=True)
        self._keys, self._counts = _merge(
            np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts])
        )
        self._fit()

    def absorb(self, other: Histogram) -> None:
        """Add another's counts."""
        dropped = max(self._dropped, other._dropped)
        keys = [one._keys >> (dropped - one._dropped) for one in (self, other)]
        counts = np.concatenate([self._counts, other._counts])
        self._dropped = dropped
        self._keys, self._counts = _merge(np.concatenate(keys), counts)
        self._fit()

    def _fit(self) -> None:
        while len(self._keys) > LIMIT:
            self._dropped += 1
            self._keys, self._counts = _merge(self._keys >> 1, self._counts)

    @property
    def n_distinct(self) -> int:
        return len(self._keys)

    def counts(self, edges: tuple[float, ...]) -> np.ndarray:
        """How many values fall into each bin of `edges`, as `edges()` returned them."""
        bins = bin_of(self._starts(), edges)
        out = np.zeros(len(edges) + 1, dtype=np.int64)
        np.add.at(out, bins, self._counts)
        return out

    def _starts(self) -> np.ndarray:
        """The smallest value of every key; dropped bits must not lead below minus infinity."""
        lowest = _ordered(np.array([-np.inf]))
        return _unordered(np.maximum(self._keys << self._dropped, lowest))

    def edges(self, n_bins: int) -> tuple[float, ...]:
        """The edges of bins with equal counts, as far as repeated values allow.

        With at most n_bins distinct values each has a bin. A single value is an edge itself, so
        that its bin starts at it.
        """
        if n_bins == 1 or not len(self._keys):
            return ()
        if len(self._keys) <= n_bins:
            starts = np.arange(min(1, len(self._keys) - 1), len(self._keys))
        else:
            below = np.cumsum(self._counts)
            ranks = np.array([int(below[-1]) * k // n_bins for k in range(1, n_bins)])
            starts = np.unique(np.searchsorted(below, ranks) + 1)
            starts = starts[starts < len(self._keys)]
        edges = self._starts()[starts]
        return tuple(float(e) for e in np.unique(edges[np.isfinite(edges)]))


class ExactSum:
    """A sum of finite floats, kept as a multiple of 2^-1126: exact, so order does not matter."""

    _UNIT = 1126  # 1073 for the smallest exponent of frexp, 53 for the digits

    def __init__(self) -> None:
        self._total = 0

    def add(self, values: np.ndarray) -> None:
        fraction, exponent = np.frexp(values)
        digits = (fraction * 2.0**53).astype(np.int64)
        low, high = digits & 0x3FFFFFF, digits >> 26
        levels, where = np.unique(exponent, return_inverse=True)
        # Halves of 27 bits add up exactly in a float64 for up to 2^26 values per call.
        highs = np.bincount(where, weights=high)
        lows = np.bincount(where, weights=low)
        for level, h, lo in zip(levels.tolist(), highs.tolist(), lows.tolist(), strict=True):
            self._total += ((int(h) << 26) + int(lo)) << (level + self._UNIT - 53)

    def add_squares(self, values: np.ndarray) -> None:
        """Add the squares, each as the rounded product plus its rounding error (Dekker)."""
        square = values * values
        high = values * 134217729.0  # 2^27 + 1 splits 53 digits in two halves
        high = high - (high - values)
        low = values - high
        self.add(square)
        self.add(((high * high - square) + 2 * high * low) + low * low)

    def absorb(self, other: ExactSum) -> None:
        self._total += other._total

    def value(self) -> Fraction:
        return Fraction(self._total, 1 << self._UNIT)


def bin_of(values: np.ndarray, edges: tuple[float, ...]) -> np.ndarray:
    """The bin of each value, 0 .. len(edges); infinities fall into the end bins, NaN anywhere."""
    return np.searchsorted(np.asarray(edges, dtype=np.float64), values, side="right")


def bin_labels(edges: tuple[float, ...]) -> list[str]:
    """Readable names of the bins: '< 2', '[2, 5)', '>= 5'."""
    if not edges:
        return ["any"]
    text = [f"{e:g}" for e in edges]
    if len(set(text)) < len(text):  # six digits do not tell them apart
        text = [repr(e) for e in edges]
    inner = [f"[{a}, {b})" for a, b in pairwise(text)]
    return [f"< {text[0]}", *inner, f">= {text[-1]}"]
