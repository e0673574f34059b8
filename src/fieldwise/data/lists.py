"""Fields with several values per row: lists, and text with a separator.

A column of lists is flattened, value after value, and put back as slots: (n, n_slots) codes and
values, of which a row fills the first ones. An empty slot has code 0 and value 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from ..errors import DataError
from .chunks import Chunk
from .schema import Field
from .values import as_text

__all__ = ["MOST_VALUES", "FlatLists", "check_lengths", "flat_lists", "holds_lists", "slotted"]

MOST_VALUES = 256  # of a list, unless a field's max_values says otherwise


def holds_lists(column: pl.Series) -> bool:
    return isinstance(column.dtype, (pl.List, pl.Array))


@dataclass(frozen=True)
class _Items(Chunk):
    """The values of lists, one after the other; `rows` says which row each came from."""

    rows: np.ndarray | None = None

    def locate(self, row: int) -> str:
        return super().locate(row if self.rows is None else int(self.rows[row]))


@dataclass(frozen=True)
class FlatLists:
    """The lists of n rows, N values in all; a row that is null counts as one null value."""

    lengths: np.ndarray  # (n,) int32
    items: Chunk  # the values, in a column of the same name
    weights: np.ndarray | None  # (N,) if the values have them


def flat_lists(chunk: Chunk, field: Field) -> FlatLists:
    """Flatten the field's column. A plain value is a list of one."""
    column = chunk.frame[field.column]
    if not holds_lists(column):
        column = as_text(column)
        if field.separator is None:
            return FlatLists(np.ones(len(column), np.int32), chunk, None)
        column = column.set(column.str.strip_chars() == "", None).str.split(field.separator)
    elif isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    lengths = column.list.len().fill_null(1)
    rows = np.arange(len(column))
    empty = "is an empty list; null means no value"
    _refuse(chunk, field, rows, lengths == 0, empty)
    flat = column.explode(empty_as_null=True)
    rows = np.repeat(rows, lengths.to_numpy())
    weights = None
    if isinstance(flat.dtype, pl.Struct):
        parts = flat.struct.unnest().get_columns()
        if len(parts) != 2 or not parts[1].dtype.is_numeric():
            raise DataError(
                f"field {field.name!r} holds lists of {flat.dtype}; a value with a weight is a "
                "struct of two, the second a number"
            )
        flat, weight = parts
        number = weight.cast(pl.Float64, strict=False)
        wrong = flat.is_not_null() & ~number.is_finite().fill_null(False)
        _refuse(chunk, field, rows, wrong, "holds a weight that is not a finite number")
        weights = number.fill_null(1.0).to_numpy()
    if field.separator is not None and flat.dtype == pl.String:
        flat = flat.str.strip_chars()
        gap = f"has an empty value beside a {field.separator!r}; remove it, or leave the cell empty"
        _refuse(chunk, field, rows, flat == "", gap)
    wrong = flat.is_null() & ~pl.Series(column.is_null().to_numpy()[rows])
    _refuse(chunk, field, rows, wrong, "is a list with a null in it; leave it out of the list")
    flat = flat.alias(field.column)
    items = _Items(flat.to_frame(), chunk.where, chunk.first_row, chunk.done, rows)
    return FlatLists(lengths.cast(pl.Int32).to_numpy(), items, weights)


def _refuse(chunk: Chunk, field: Field, rows: np.ndarray, wrong: pl.Series, what: str) -> None:
    """Raise for the first value that is wrong; `rows` (N,) are the values' rows."""
    if wrong.any():
        row = int(rows[wrong.arg_true()[0]])
        raise DataError(f"{chunk.locate(row)}: field {field.name!r} {what}")


def check_lengths(chunk: Chunk, field: Field, lengths: np.ndarray, most: int, advice: str) -> None:
    """Raise for the first list that is longer than `most`."""
    if len(lengths) and lengths.max() > most:
        row = int(np.argmax(lengths > most))
        raise DataError(
            f"{chunk.locate(row)}: field {field.name!r} has {lengths[row]} values, "
            f"and {most} is the most; {advice}"
        )


def slotted(
    field: Field, lengths: np.ndarray, codes: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Flat codes (N,) -> codes (n, n_slots) int32 and values (n, n_slots) float32. Longer lists
    keep their first values."""
    n, n_slots = len(lengths), field.n_slots
    row = np.repeat(np.arange(n), lengths)
    place = np.arange(len(codes)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = place < n_slots
    row, place = row[kept], place[kept]
    at = np.zeros((n, n_slots), np.int32)
    at[row, place] = codes[kept]
    values = np.zeros((n, n_slots), np.float32)
    values[row, place] = 1.0 if weights is None else weights[kept]
    if field.pooling == "mean":
        values /= np.minimum(lengths, n_slots)[:, None].astype(np.float32)
    return at, values
