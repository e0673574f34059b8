"""What a column's values mean to a field: text, numbers, and the keys that stand for categories.

A *key* is the text that stands for a category, the same whatever the source: 7, 7.0 and "7" of a
whole-number field are all "7", True and "TRUE" of a boolean field are "true".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import polars as pl

from ..errors import DataError
from .chunks import Chunk
from .schema import Field

__all__ = [
    "as_text",
    "field_keys",
    "half_characters",
    "linear_numbers",
    "number_text",
    "numbers_of",
]

NO_NUMBER = ("nan", "NaN", "NAN", "")  # text that is missing rather than wrong in a numeric column
LARGEST_LINEAR = 1e150  # its square is still finite


@contextmanager
def half_characters(name: str) -> Iterator[None]:
    """Say what text that is no Unicode means: a surrogate without its other half."""
    try:
        yield
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        raise DataError(
            f"column {name!r} holds text with half a character, {half!r}, which no file can keep; "
            "mend the text"
        ) from error


def as_text(column: pl.Series) -> pl.Series:
    """Any column as text; null where there is no value. NaN is no value."""
    dtype = column.dtype
    if dtype == pl.String:
        return column
    if dtype.is_nested() or dtype == pl.Object:
        raise DataError(
            f"column {column.name!r} holds {dtype} values; a field takes a text, number, truth "
            "value or time a row, or a list of them. Drop the column or split it first"
        )
    if dtype.is_float():
        column = column.fill_nan(None)
    elif dtype.is_decimal():
        return number_text(column.cast(pl.Float64))
    elif isinstance(dtype, pl.Datetime):
        _check_years(column)
        return column.dt.to_string("%Y-%m-%dT%H:%M:%S%.f")
    elif dtype in (pl.Date, pl.Time):
        if dtype == pl.Date:
            _check_years(column)
        return column.dt.to_string("iso")
    elif isinstance(dtype, pl.Duration):
        return column.dt.total_microseconds().cast(pl.String)
    try:
        return column.cast(pl.String)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"column {column.name!r} ({dtype}) cannot be read as text: it is no UTF-8; decode the "
            "column first, or drop it"
        ) from error


FIRST, LAST = -719_162, 2_932_896  # days from 1970 to 0001-01-01 and 9999-12-31
A_DAY = {"ms": 86_400_000, "us": 86_400_000_000}


def _check_years(column: pl.Series) -> None:
    """Refuse times that no year of four digits has: their parts are read off the text, and far
    enough out polars panics."""
    unit = getattr(column.dtype, "time_unit", None)
    if unit == "ns":  # which reach from 1677 to 2262
        return
    days = column.to_physical().cast(pl.Int64) // (A_DAY[unit] if unit else 1)
    if not days.is_between(FIRST, LAST).all():  # of a missing one it says nothing
        raise DataError(
            f"column {column.name!r} holds a time outside the years 1 to 9999; make it null or "
            "mend it"
        )


def _as_number(column: pl.Series) -> np.ndarray:
    """float64, NaN where there is no number."""
    if column.dtype == pl.String:
        column = column.str.strip_chars()
    elif isinstance(column.dtype, pl.Duration):
        column = column.dt.total_microseconds()
    elif column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    return column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()


def numbers_of(chunk: Chunk, name: str) -> np.ndarray:
    """A column as float64, NaN for missing; a value that is no number is an error."""
    column = chunk.frame[name]
    dtype = column.dtype
    if (
        dtype.is_nested()
        or dtype in (pl.Object, pl.Binary, pl.Date, pl.Time)
        or (isinstance(dtype, pl.Datetime))
    ):
        raise DataError(f"column {name!r} is numeric but holds {dtype} values")
    number = _as_number(column)
    if dtype.is_numeric() or dtype == pl.Boolean or not np.isnan(number).any():
        return number
    text = as_text(column).str.strip_chars()
    bad = np.isnan(number) & (text.is_not_null() & ~text.is_in(NO_NUMBER)).to_numpy()
    if bad.any():  # truth values as text, perhaps
        words = text.str.to_lowercase().replace_strict({"true": 1.0, "false": 0.0}, default=np.nan)
        number = np.where(bad, words.to_numpy(), number)
        bad &= np.isnan(number)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"{chunk.locate(row)}: column {name!r} is numeric but holds {column[row]!r}; "
            f"make it a category (kinds={{{name!r}: 'category'}}) or mend the value"
        )
    return number


def linear_numbers(chunk: Chunk, name: str) -> np.ndarray:
    """The same for a field that is kept as a number, which infinities cannot be."""
    number = numbers_of(chunk, name)
    large = ~np.isnan(number) & ~(np.abs(number) < LARGEST_LINEAR)
    if large.any():
        row = int(np.argmax(large))
        raise DataError(
            f"{chunk.locate(row)}: column {name!r} holds {number[row]:g}, which a linear field "
            "cannot take; use binning='quantile', where it falls into an end bin"
        )
    return number


def number_text(number: pl.Series) -> pl.Series:
    """float64 -> text, whole numbers without a point; NaN and null are null."""
    whole = (number == number.round()) & (number.abs() < 2.0**63)
    text = pl.when(whole).then(number.cast(pl.Int64, strict=False).cast(pl.String))
    out = pl.select(text.otherwise(number.fill_nan(None).cast(pl.String))).to_series()
    return out.alias(number.name)


def _log_rule(number: pl.Series) -> pl.Series:
    """The paper's rule for Criteo: v > 2 -> floor(log(v)^2), else floor(v) - 2."""
    v = number.to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        out = np.where(v > 2, np.floor(np.log(v) ** 2), np.floor(v) - 2)
    return number_text(pl.Series(number.name, out))


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


def _whole_text(text: pl.Series) -> pl.Series:
    """'+07.0' -> '7' for whole numbers of any length, null for everything else."""
    parts = text.str.extract_groups(r"^([+-]?)0*([0-9]+?)(?:\.0*)?$").struct.unnest()
    sign, digits = parts.to_series(0), parts.to_series(1)
    minus = (sign == "-") & (digits != "0")
    return pl.select(pl.when(minus).then("-" + digits).otherwise(digits)).to_series()


def field_keys(field: Field, text: pl.Series) -> pl.Series:
    """The keys of these texts for this field; null is missing."""
    if field.part is not None:
        return _calendar(text, field.part)
    if field.dtype == "string":
        return text
    text = text.str.strip_chars()
    if field.dtype == "boolean":
        return text.str.to_lowercase().replace(
            {"1": "true", "0": "false", "1.0": "true", "0.0": "false", "-0.0": "false"}
        )
    text = text.set(text.is_in(NO_NUMBER), None)
    number = text.cast(pl.Float64, strict=False)
    if field.binning == "log2":
        return _log_rule(number)
    # Long whole numbers keep all their digits; what is no number keeps its text.
    return pl.select(pl.coalesce(_whole_text(text), number_text(number), text)).to_series()
