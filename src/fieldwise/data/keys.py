"""From a column's values to keys (text), and from keys to small whole numbers.

A *key* is the text that stands for a category, the same whatever the source: 7, 7.0 and "7" of a
whole-number field are all "7", True and "TRUE" of a boolean field are "true". Working out a key is
dear, so it is done once per distinct value and not once per row: `Keys` remembers.
"""

from __future__ import annotations

import threading

import numpy as np
import polars as pl

from ..errors import DataError
from .schema import Field

__all__ = ["Keys", "as_number", "as_text", "field_keys"]

# A table of raw values larger than this is forgotten and begun again; the keys stay.
RAW_LIMIT = 1 << 20

WORDS_FOR_MISSING = ("nan", "NaN", "NAN", "")


def as_text(column: pl.Series) -> pl.Series:
    """Any column as text; null where there is no value. NaN is no value."""
    dtype = column.dtype
    if dtype == pl.String:
        return column
    if dtype.is_float():
        column = column.fill_nan(None)
    elif isinstance(dtype, pl.Datetime):
        return column.dt.to_string("%Y-%m-%dT%H:%M:%S")
    elif dtype == pl.Date:
        return column.dt.to_string("%Y-%m-%d")
    elif dtype == pl.Binary:
        return column.cast(pl.String, strict=False)
    elif dtype.is_nested() or dtype == pl.Object:
        raise DataError(
            f"column {column.name!r} holds {dtype} values; a field takes one text, number, "
            "truth value or time a row. Drop the column or split it first"
        )
    return column.cast(pl.String)


def as_number(column: pl.Series) -> np.ndarray:
    """Any column as float64, NaN where there is no number (callers check text beforehand)."""
    if column.dtype == pl.String:
        column = column.str.strip_chars()
    return column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()


def _number_text(number: pl.Series) -> pl.Series:
    """float64 -> text, whole numbers without a point; NaN and null are null."""
    whole = (number == number.round()) & (number.abs() < 2.0**63)
    return (
        pl.select(
            pl.when(whole)
            .then(number.cast(pl.Int64, strict=False).cast(pl.String))
            .otherwise(number.fill_nan(None).cast(pl.String))
        )
        .to_series()
        .alias(number.name)
    )


def _log_rule(number: pl.Series) -> pl.Series:
    """The paper's rule for Criteo: v > 2 -> floor(log(v)^2), else floor(v) - 2."""
    v = number.to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        out = np.where(v > 2, np.floor(np.log(v) ** 2), np.floor(v) - 2)
    return _number_text(pl.Series(number.name, out))


def _calendar(text: pl.Series, part: str) -> pl.Series:
    """A part of an ISO date or time, read off the text as it is written (no time zone moves it)."""
    if part == "date":
        return text.str.extract(r"^(\d{4}-\d{2}-\d{2})", 1)
    if part == "weekday":
        days = text.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
        return days.dt.weekday().cast(pl.String)
    where = {"year": (0, 4), "month": (5, 2), "day": (8, 2), "hour": (11, 2), "minute": (14, 2)}
    start, length = where[part]
    return text.str.slice(start, length).cast(pl.Int32, strict=False).cast(pl.String)


def field_keys(field: Field, text: pl.Series) -> pl.Series:
    """The keys of these texts for this field; null is missing."""
    if field.part is not None:
        return _calendar(text, field.part)
    if field.dtype == "string":
        return text
    if field.dtype == "boolean":
        low = text.str.strip_chars().str.to_lowercase()
        return low.replace({"1": "true", "0": "false", "1.0": "true", "0.0": "false"})
    text = text.str.strip_chars()
    text = text.set(text.is_in(WORDS_FOR_MISSING), None)
    number = text.cast(pl.Float64, strict=False)
    if field.binning == "log2":
        return _log_rule(number)
    # Whole numbers past 2^53 keep all their digits; what is no number keeps its text.
    whole = text.cast(pl.Int64, strict=False).cast(pl.String)
    return pl.select(pl.coalesce(whole, _number_text(number), text)).to_series()


class _Dictionary:
    """Distinct texts numbered 1, 2, ... as they come; 0 is null. Kept by polars, off the GIL."""

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

    `known` keys come first, in the order given. The numbers depend on the order of rows and
    threads; they are only ever a step on the way to codes, which do not.
    """

    def __init__(self, field: Field, known: pl.Series | None = None) -> None:
        self.field = field
        self._keys = _Dictionary()
        # A plain text field needs no second step: its texts are its keys. A calendar part is
        # cheaper to cut out of every row than to look up among all times.
        self._direct = field.part is not None or (field.binning is None and field.dtype == "string")
        self._raw = _Dictionary()
        self._of_raw = np.zeros(1, dtype=np.int32)
        self._lock = threading.Lock()
        if known is not None and len(known):
            self._keys.ids(known)

    @property
    def size(self) -> int:
        """One more than the largest number given out."""
        return self._keys.size

    def values(self) -> pl.Series:
        return self._keys.values()

    def ids(self, column: pl.Series) -> np.ndarray:
        """(n,) int32"""
        text = as_text(column)
        if self._direct:
            return self._keys.ids(field_keys(self.field, text))
        with self._lock:
            if self._raw.size > RAW_LIMIT:
                self._raw, self._of_raw = _Dictionary(), np.zeros(1, dtype=np.int32)
            before = self._raw.size
            raw = self._raw.ids(text)
            if self._raw.size > before:
                self._learn(text.filter(pl.Series(raw >= before)).unique())
            return self._of_raw[raw]

    def _learn(self, text: pl.Series) -> None:
        of_raw = np.zeros(self._raw.size, dtype=np.int32)
        of_raw[: len(self._of_raw)] = self._of_raw
        of_raw[self._raw.ids(text)] = self._keys.ids(field_keys(self.field, text))
        self._of_raw = of_raw
