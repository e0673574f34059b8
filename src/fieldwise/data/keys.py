"""From keys to small whole numbers, with a cache.

Computing a key is expensive, so it is done once per distinct value, not once per row.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import polars as pl

from ..errors import DataError
from .chunks import Chunk
from .schema import Field
from .values import NO_NUMBER, as_text, field_keys

__all__ = ["KeyCounts", "Keys"]

# A cache of raw values larger than this is cleared; the keys stay.
RAW_LIMIT = 1 << 20


class _Dictionary:
    """Numbers distinct texts 1, 2, ... as they come; null is 0. Polars holds them, off the GIL."""

    def __init__(self) -> None:
        # The empty column keeps the categories alive between calls.
        self._keep = pl.Series([], dtype=pl.Categorical(pl.Categories.random()))
        self.size = 1

    def ids(self, text: pl.Series) -> np.ndarray:
        physical = text.cast(self._keep.dtype).to_physical()
        ids = (physical.cast(pl.Int32) + 1).fill_null(0).to_numpy()
        if len(ids):
            self.size = max(self.size, int(ids.max()) + 1)
        return ids

    def values(self) -> pl.Series:
        """The texts in the order of their numbers, from 1."""
        dtype = self._keep.dtype
        assert isinstance(dtype, pl.Categorical)
        return dtype.categories.to_series().head(self.size - 1)


class Keys:
    """Numbers for the keys of one field: 0 is missing, 1, 2, ... in the order first seen.

    `known` keys come first, in the order given. The numbers depend on the order of rows and of
    threads; the codes that are later made of them do not.
    """

    def __init__(self, field: Field, known: pl.Series | None = None) -> None:
        self.field = field
        self._keys = _Dictionary()
        # A text field needs no cache: its texts are its keys. A calendar part is cheaper to cut
        # out of every row than to look up among all times.
        self._direct = field.part is not None or (field.binning is None and field.dtype == "string")
        self._raw = _Dictionary()
        self._of_raw = np.zeros(1, dtype=np.int32)
        self.n_bytes = 0  # of all texts so far, which bounds what is kept of them
        self._lock = threading.Lock()
        if known is not None and len(known):
            self._keys.ids(known)

    @property
    def size(self) -> int:
        """The largest number so far, plus one."""
        return self._keys.size

    def values(self) -> pl.Series:
        return self._keys.values()

    def __reduce__(self) -> Any:
        """Pickle the numbered keys without the cache."""
        return Keys, (self.field, self.values())

    def numbered(self, other: Keys) -> np.ndarray:
        """(other.size,) this one's number for each of the other's; new keys are added at the end"""
        theirs = self._keys.ids(other.values())
        return np.concatenate([np.zeros(1, np.int32), theirs])

    def ids(self, chunk: Chunk) -> np.ndarray:
        """(n,) int32, the numbers of a chunk's values in the field's column"""
        text = as_text(chunk.frame[self.field.column])
        self.n_bytes += int(text.str.len_bytes().sum())
        if self._direct:
            return self._keys.ids(self._work_out(text, chunk, text))
        with self._lock:
            if self._raw.size > RAW_LIMIT:
                self._raw, self._of_raw = _Dictionary(), np.zeros(1, dtype=np.int32)
            before = self._raw.size
            raw = self._raw.ids(text)
            if self._raw.size > before:
                fresh = text.filter(pl.Series(raw >= before)).unique()
                try:
                    keys = self._work_out(fresh, chunk, text)
                except DataError:  # do not cache what was refused
                    self._raw, self._of_raw = _Dictionary(), np.zeros(1, dtype=np.int32)
                    raise
                of_raw = np.zeros(self._raw.size, dtype=np.int32)
                of_raw[:before] = self._of_raw
                of_raw[self._raw.ids(fresh)] = self._keys.ids(keys)
                self._of_raw = of_raw
            return self._of_raw[raw]

    def _work_out(self, some: pl.Series, chunk: Chunk, text: pl.Series) -> pl.Series:
        """The keys of some of the chunk's texts; raises for one that is not a number or a time as
        it should be."""
        keys = field_keys(self.field, some)
        if keys is not some and keys.null_count() > some.null_count():
            wrong = some.filter(keys.is_null() & some.is_not_null() & ~some.is_in(NO_NUMBER))
            if len(wrong):
                row = (text == wrong[0]).arg_true()[0]
                what = "a time" if self.field.part else "a number"
                raise DataError(
                    f"{chunk.locate(row)}: column {self.field.column!r} holds {wrong[0]!r}, "
                    f"which is not {what}; correct the value or make the column a category"
                )
        return keys


class KeyCounts:
    """The keys of one field, and how often each was seen: `counts` (size,), by number."""

    def __init__(self, field: Field, known: pl.Series | None = None) -> None:
        self.keys = Keys(field, known)
        self.counts = np.zeros(self.keys.size, dtype=np.int64)

    def add(self, chunk: Chunk) -> np.ndarray:
        """Count the keys of a chunk's rows; returns their numbers (n,)."""
        ids = self.keys.ids(chunk)
        counts = np.bincount(ids, minlength=self.keys.size)
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        return ids

    def absorb(self, other: KeyCounts) -> np.ndarray:
        """Add another's counts; returns this one's number for each of the other's"""
        here = self.keys.numbered(other.keys)
        counts = np.zeros(self.keys.size, dtype=np.int64)
        counts[: len(self.counts)] = self.counts
        np.add.at(counts, here, other.counts)
        self.counts = counts
        return here
