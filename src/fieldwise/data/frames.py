"""Any table in memory as a polars frame: pandas, polars, pyarrow, NumPy, Arrow streams, dicts.

pandas is taken apart column by column, so that pyarrow is not needed for it and a column of mixed
objects becomes text instead of an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from ..errors import DataError, SchemaError
from .chunks import CHUNK_ROWS, Chunk

__all__ = ["FrameSource", "LazySource", "column_names", "to_frame"]


def to_frame(data: Any) -> pl.DataFrame:
    """The table as a polars frame; columns without names are x0, x1, ..."""
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if hasattr(data, "toarray"):
        raise TypeError(
            "a sparse matrix is not a table of fields; pass the original columns, "
            "or a dense array with X.toarray()"
        )
    if type(data).__module__.split(".")[0] == "pandas":
        return _from_pandas(data)
    if isinstance(data, Mapping):
        return pl.DataFrame({str(k): _series(str(k), v) for k, v in data.items()})
    if hasattr(data, "__arrow_c_stream__"):
        _no_duplicates(list(getattr(data, "column_names", [])))
        return pl.DataFrame(data)
    return _from_array(data)


def _from_pandas(data: Any) -> pl.DataFrame:
    if not hasattr(data, "columns"):
        data = data.to_frame(name=data.name if data.name is not None else "x0")
    names = column_names(data)
    return pl.DataFrame([_pandas_column(n, data.iloc[:, i]) for i, n in enumerate(names)])


def column_names(data: Any) -> list[str]:
    names = [str(c) for c in data.columns]
    _no_duplicates(names)
    return names


def _no_duplicates(names: list[str]) -> None:
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise SchemaError(f"column {twice[0]!r} appears twice in the table; rename one")


def _pandas_column(name: str, column: Any) -> pl.Series:
    dtype = column.dtype
    kind = getattr(dtype, "kind", "O")
    if isinstance(dtype, np.dtype) and kind in "biufM":
        return pl.Series(name, column.to_numpy(), nan_to_null=kind == "f")
    if type(dtype).__name__ == "CategoricalDtype":
        codes = pl.Series(column.cat.codes.to_numpy().astype(np.int64))
        labels = _series(name, column.cat.categories.tolist())
        return labels.gather(codes.set(codes < 0, None).cast(pl.UInt32)).alias(name)
    if type(dtype).__name__ == "DatetimeTZDtype":
        return pl.Series(name, column.dt.tz_localize(None).to_numpy())
    if kind in "biuf":  # pandas' own nullable numbers
        missing = pl.Series(column.isna().to_numpy())
        return pl.Series(name, column.fillna(False if kind == "b" else 0).to_numpy()).set(
            missing, None
        )
    values = column.to_numpy(dtype=object, copy=True)
    values[column.isna().to_numpy()] = None
    return _series(name, values.tolist())


def _series(name: str, values: Any) -> pl.Series:
    """A column; a mixture of types becomes text."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        if values.dtype.kind == "U":
            values = values.tolist()
        return pl.Series(name, values)
    values = [None if v is None or v != v else v for v in values]
    kinds = {type(v) for v in values if v is not None}
    if len(kinds) > 1 and not kinds <= {int, float}:
        return pl.Series(name, [v if v is None else str(v) for v in values], dtype=pl.String)
    try:
        return pl.Series(name, values)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(name, [v if v is None else str(v) for v in values], dtype=pl.String)


def _from_array(data: Any) -> pl.DataFrame:
    array = np.asarray(data)
    if array.dtype.names is not None:
        return pl.DataFrame(array)
    if array.ndim != 2:
        raise DataError(
            f"expected 2D array, got {array.ndim}D array instead; a table has rows and columns. "
            "Reshape your data with X.reshape(-1, 1) if it is one field, or X.reshape(1, -1) "
            "if it is one row"
        )
    if array.dtype.kind == "c":
        raise DataError("Complex data not supported: a field takes text or real numbers")
    return pl.DataFrame([_series(f"x{j}", _plain(array[:, j])) for j in range(array.shape[1])])


def _plain(column: np.ndarray) -> Any:
    return column.tolist() if column.dtype.kind in "OSU" else np.ascontiguousarray(column)


class FrameSource:
    """A frame in memory, handed out in slices."""

    is_text = False

    def __init__(self, data: Any) -> None:
        self.frame = to_frame(data)
        self.name = "the table"
        self.columns = self.frame.columns
        self.total: float | None = float(self.frame.height)
        if not self.columns:
            raise DataError("the table has no columns")
        if self.frame.height == 0:
            raise DataError("the table has no rows")

    def chunks(self) -> Iterator[Chunk]:
        for start in range(0, self.frame.height, CHUNK_ROWS):
            part = self.frame.slice(start, CHUNK_ROWS)
            yield Chunk(part, "", start, start + part.height)


class LazySource:
    """polars' lazy frames (Parquet, Arrow, queries), streamed; `parts` are (name, frame)."""

    is_text = False

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
        except (pl.exceptions.PolarsError, OSError) as error:
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
            raise DataError(f"{self.name} has no rows")


def _next(batches: Iterator[pl.DataFrame], name: str) -> pl.DataFrame | None:
    try:
        return next(batches, None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{name} cannot be read: {error}") from error
