"""Any table in memory as a polars frame: pandas, polars, pyarrow, NumPy, Arrow streams, dicts.

pandas is taken apart column by column, so that pyarrow is not needed for it and a column of mixed
objects becomes text instead of an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from ..errors import DataError, FieldwiseError, NoRows, SchemaError
from .chunks import CHUNK_ROWS, UNREADABLE, Chunk
from .values import as_text, half_characters, number_text

__all__ = ["FrameSource", "LazySource", "is_missing", "to_frame"]

_SETS = (set, frozenset)
LISTS = {list, tuple, np.ndarray, *_SETS}


def to_frame(data: Any) -> pl.DataFrame:
    """The table as a polars frame; columns without names are x0, x1, ..."""
    if hasattr(data, "toarray"):
        raise TypeError(
            "a sparse matrix is not a table of fields; pass the original columns, "
            "or a dense array with X.toarray()"
        )
    try:
        return _to_frame(data)
    except FieldwiseError:
        raise
    except (*UNREADABLE, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"the table cannot be read: {error}") from error


def _to_frame(data: Any) -> pl.DataFrame:
    if isinstance(data, pl.DataFrame):
        odd = [c for c, dtype in data.schema.items() if dtype == pl.Object]
        return data.with_columns([_series(c, data[c].to_list()) for c in odd]) if odd else data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if type(data).__module__.split(".")[0] == "pandas":
        return _from_pandas(data)
    if isinstance(data, Mapping):
        return pl.DataFrame([_series(str(k), v) for k, v in data.items()])
    if hasattr(data, "__arrow_c_stream__"):
        return _from_arrow(data)
    return _from_array(data)


def _from_arrow(data: Any) -> pl.DataFrame:
    """Dictionary columns are categories, whatever their values are."""
    schema: Any = getattr(data, "schema", None)
    fields = list(schema) if hasattr(schema, "names") else []
    _no_duplicates([f.name for f in fields])
    frame = pl.DataFrame(data)
    coded = [f.name for f in fields if str(f.type).startswith("dictionary<")]
    return frame.with_columns([_category(frame[name]) for name in coded])


def _category(column: pl.Series) -> pl.Series:
    if column.dtype.is_float():
        column = number_text(column)
    return column.cast(pl.String).cast(pl.Categorical)


def _from_pandas(data: Any) -> pl.DataFrame:
    if not hasattr(data, "columns"):
        data = data.to_frame(name=data.name if data.name is not None else "x0")
    names = [str(c) for c in data.columns]
    _no_duplicates(names)
    return pl.DataFrame([_pandas_column(n, data.iloc[:, i]) for i, n in enumerate(names)])


def _no_duplicates(names: list[str]) -> None:
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise SchemaError(f"column {twice[0]!r} appears twice in the table; rename one")


def _pandas_column(name: str, column: Any) -> pl.Series:
    dtype = column.dtype
    kind = getattr(dtype, "kind", "O")
    if isinstance(dtype, np.dtype) and kind in "biufMm":
        return _series(name, column.to_numpy())
    if type(dtype).__name__ == "CategoricalDtype":
        codes = pl.Series(column.cat.codes.to_numpy().astype(np.int64))
        labels = _category(_series(name, column.cat.categories.tolist()))
        return labels.gather(codes.set(codes < 0, None).cast(pl.UInt32)).alias(name)
    if type(dtype).__name__ == "DatetimeTZDtype":
        return _series(name, column.dt.tz_localize(None).to_numpy())
    if type(dtype).__name__ == "StringDtype":
        texts = column.to_numpy(dtype=object, na_value=None).tolist()
        return _series(name, texts)
    missing = column.isna().to_numpy()
    if kind in "biuf":  # pandas' own nullable numbers
        filled = column.fillna(False if kind == "b" else 0).to_numpy()
        filled = filled.astype(bool) if kind == "b" else filled
        return pl.Series(name, filled).set(pl.Series(missing), None)
    values = column.to_numpy(dtype=object, copy=True)
    values[missing] = None
    return _series(name, values.tolist())


def is_missing(value: Any) -> bool:
    """None, NaN, and pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(value != value)


def _series(name: str, values: Any) -> pl.Series:
    """A column; a mixture of types becomes text."""
    with half_characters(name):
        return _column(name, values)


def _column(name: str, values: Any) -> pl.Series:
    if isinstance(values, np.ma.MaskedArray):
        masked = pl.Series(np.ma.getmaskarray(values))
        return _series(name, values.data).set(masked, None)
    if isinstance(values, (np.ndarray, pl.Series)) and values.dtype not in (object, pl.Object):
        return _typed_series(name, values)
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise DataError(f"column {name!r} is {values!r}; it should hold a value a row")
    values = list(values)
    with suppress(TypeError, ValueError, OverflowError, *UNREADABLE):
        return pl.Series(name, values, dtype=pl.String, strict=True)  # text alone: no need to look
    items = [None if is_missing(v) else v for v in values]
    kinds = {type(v) for v in items if v is not None}
    if kinds and kinds <= LISTS:
        return _list_series(name, items)
    # Where no type of polars holds them all, text does.
    with suppress(TypeError, OverflowError, *UNREADABLE):
        if len(kinds) <= 1 or kinds <= {int, float}:
            column = pl.Series(name, items)
            if column.dtype != pl.Object:
                return column
    return pl.Series(name, [v if v is None else str(v) for v in items], dtype=pl.String)


def _list_series(name: str, items: list[Any]) -> pl.Series:
    """A column of lists; values of several types become text."""
    rows = [None if v is None else sorted(v) if isinstance(v, _SETS) else list(v) for v in items]
    inside = [None if row is None else len(row) for row in rows]
    flat = _series(name, [value for row in rows if row is not None for value in row])
    if flat.dtype == pl.Null:
        flat = flat.cast(pl.String)
    out, at = [], 0
    for length in inside:
        out.append(None if length is None else flat[at : at + length])
        at += length or 0
    return pl.Series(name, out, dtype=pl.List(flat.dtype))


def _typed_series(name: str, values: Any) -> pl.Series:
    if isinstance(values, pl.Series):
        return values.alias(name)
    kind = values.dtype.kind
    if kind == "U":
        return pl.Series(name, values.tolist(), dtype=pl.String)
    if kind == "S":
        return as_text(pl.Series(name, values.tolist(), dtype=pl.Binary))
    if kind in "Mm":  # polars knows no seconds and no years
        values = values.astype(f"{'datetime' if kind == 'M' else 'timedelta'}64[us]")
    elif values.dtype.itemsize > 8 and kind == "f":
        values = values.astype(np.float64)
    return pl.Series(name, np.ascontiguousarray(values), nan_to_null=kind == "f")


def _from_array(data: Any) -> pl.DataFrame:
    array = data if isinstance(data, np.ndarray) else np.asarray(data)
    if array.dtype.names is not None:
        return pl.DataFrame([_series(n, array[n]) for n in array.dtype.names])
    if array.ndim != 2:
        raise DataError(
            f"expected 2D array, got {array.ndim}D array instead; a table has rows and columns. "
            "Reshape your data with X.reshape(-1, 1) if it is one field, or X.reshape(1, -1) "
            "if it is one row"
        )
    if array.dtype.kind == "c":
        raise DataError("Complex data not supported: a field takes text or real numbers")
    return pl.DataFrame([_series(f"x{j}", array[:, j]) for j in range(array.shape[1])])


class FrameSource:
    """A frame in memory, handed out in slices."""

    target: str | None = None
    kinds: Mapping[str, str] = MappingProxyType({})

    def __init__(self, data: Any) -> None:
        self.frame = to_frame(data)
        self.name = "the table"
        self.columns = self.frame.columns
        self.total: float | None = float(self.frame.height)
        if not self.columns:
            raise DataError("the table has no columns")
        if self.frame.height == 0:
            raise NoRows("the table has no rows")

    def chunks(self) -> Iterator[Chunk]:
        for start in range(0, self.frame.height, CHUNK_ROWS):
            part = self.frame.slice(start, CHUNK_ROWS)
            yield Chunk(part, "", start, start + part.height)


class LazySource:
    """polars' lazy frames (Parquet, Arrow, queries), streamed; `parts` are (name, frame)."""

    target: str | None = None
    kinds: Mapping[str, str] = MappingProxyType({})

    def __init__(self, parts: list[tuple[str, pl.LazyFrame]]) -> None:
        self._parts = parts
        self.name = parts[0][0] if len(parts) == 1 else f"{len(parts)} files"
        schemas = [self._schema(name, frame) for name, frame in parts]
        self.columns = list(schemas[0])
        for (name, _), schema in zip(parts, schemas, strict=True):
            if list(schema) != self.columns:
                raise SchemaError(
                    f"{name}: its columns differ from those of {parts[0][0]}: "
                    f"{list(schema)[:8]} instead of {self.columns[:8]}"
                )
        self.total: float | None = None

    @staticmethod
    def _schema(name: str, frame: pl.LazyFrame) -> pl.Schema:
        try:
            schema = frame.collect_schema()
        except UNREADABLE as error:
            raise DataError(f"{name} cannot be read: {error}") from error
        if not len(schema):
            raise DataError(f"{name} has no columns")
        return schema

    def chunks(self) -> Iterator[Chunk]:
        n_rows = 0
        for name, frame in self._parts:
            row = 0
            batches = frame.collect_batches(chunk_size=CHUNK_ROWS, maintain_order=True, lazy=True)
            while (part := _next(batches, name)) is not None:
                yield Chunk(part, name, row, n_rows + row + part.height)
                row += part.height
            n_rows += row
        if n_rows == 0:
            raise NoRows(f"{self.name} has no rows")


def _next(batches: Iterator[pl.DataFrame], name: str) -> pl.DataFrame | None:
    try:
        return next(batches, None)
    except UNREADABLE as error:
        raise DataError(f"{name} cannot be read: {error}") from error
