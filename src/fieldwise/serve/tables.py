"""Whole tables over HTTP: Arrow and Parquet in, the same kind out."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from ..losses import LOSSES
from .footer import Part, parts_of
from .limits import Limits, Refusal
from .scoring import Served, check_finite, too_long

__all__ = ["KINDS", "score_table"]

STREAM, FILE, PARQUET = (
    "application/vnd.apache.arrow.stream",
    "application/vnd.apache.arrow.file",
    "application/vnd.apache.parquet",
)
UNPACKED = 16  # a decoded table may be this many times the limit of a body
WIDEST = 64  # bytes of a value of fixed width
PLAIN_LOGICAL = ("NONE", "STRING", "ENUM", "JSON", "BSON")  # types of bytes that are read as such


def score_table(
    served: Served,
    body: bytes,
    kind: str,
    limits: Limits,
    deadline: float,
    unseen: list[tuple[str, int]],
) -> tuple[bytes, int]:
    """The predictions of a table's rows as a table of the same kind, and their number; adds to
    `unseen` how often fields had values never seen in training."""
    model = served.model
    table = _readable(served, body, kind, limits)
    n_unseen = np.zeros(model.layout.n_fields, np.int64)
    parts, chosen = [], []
    if table.num_rows:
        for _, coded in model.coded_chunks(table, n_unseen):
            parts.append(model.score_codes(*coded))
            if model.objective.is_vote:
                chosen.append(model.choices(*coded))
            if time.monotonic() > deadline:
                raise TimeoutError
    names = (field.name for field in served.fields)
    unseen += [(name, n) for name, n in zip(names, n_unseen.tolist(), strict=False) if n]
    none = np.empty((0, sum(head.size for head in model.objective.heads)))
    z = np.concatenate([part.reshape(len(part), -1) for part in parts] or [none])
    check_finite(z)
    choices = [np.concatenate(of_target) for of_target in zip(*chosen, strict=True)]
    return _written(pa.table(_columns(served, z, choices)), kind), table.num_rows


# Reading: tables are untrusted input --------------------------------------------------------------


def _readable(served: Served, body: bytes, kind: str, limits: Limits) -> pa.Table:
    """The columns that the model needs, checked."""
    try:
        return KINDS[kind](served, body, limits)
    except (pa.ArrowException, OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise Refusal(422, f"the body is not a valid table of {kind}: {error}") from error


def _read_stream(served: Served, body: bytes, limits: Limits) -> pa.Table:
    with pa.ipc.open_stream(body) as reader:
        return _batches(served, reader.schema, iter(reader), limits)


def _read_file(served: Served, body: bytes, limits: Limits) -> pa.Table:
    with pa.ipc.open_file(body) as reader:
        every = (reader.get_batch(k) for k in range(reader.num_record_batches))
        return _batches(served, reader.schema, every, limits)


def _batches(served: Served, schema: pa.Schema, batches: Iterator[Any], limits: Limits) -> pa.Table:
    _check_names(served, schema.names)
    found, n_rows = [], 0
    for batch in batches:
        n_rows += batch.num_rows
        _check_rows(n_rows, limits)
        found.append(batch)
    table = pa.Table.from_batches(found, schema).select(served.model.schema.columns)
    table.validate(full=True)
    _check_texts(table, limits)
    return table


def _read_parquet(served: Served, body: bytes, limits: Limits) -> pa.Table:
    """Read texts as dictionaries first, which are no larger than the body's pages, so that their
    full size is known before they are decoded."""
    columns, source = served.model.schema.columns, pa.BufferReader(body)
    with pa.parquet.ParquetFile(source) as file:
        meant, about = file.schema_arrow, file.metadata
        _check_names(served, meant.names)
        _check_rows(about.num_rows, limits)
        texts = _check_pages(about, parts_of(body), set(columns), limits)
    with pa.parquet.ParquetFile(source, metadata=about, read_dictionary=texts) as file:
        table = file.read(columns=columns).select(columns)
    table.validate(full=True)
    _check_texts(table, limits)
    return table.cast(pa.schema([_plain(meant.field(name)) for name in columns]))


def _plain(field: pa.Field) -> pa.Field:
    """A large string instead of a view, because Arrow casts no dictionaries to views."""
    is_view = pa.types.is_string_view(field.type)
    return field.with_type(pa.large_string()) if is_view else field


def _check_pages(
    about: Any, groups: list[list[Part]], columns: set[str], limits: Limits
) -> list[str]:
    """Refuse columns that may grow too much when decoded; returns the paths of texts."""
    texts, size = [], 0
    dotted = tuple(name for name in columns if "." in name)
    if any(len(group) != about.num_columns for group in groups):
        raise ValueError(f"a row group does not have {about.num_columns} columns")
    for k in range(about.num_columns):
        column = about.schema.column(k)
        name = column.path.partition(".")[0]
        if name not in columns and not column.path.startswith(dotted):
            continue
        parts = [group[k] for group in groups]
        # Values may be repeated without taking bytes, in lists more often than there are rows.
        size += sum(max(part.total_uncompressed_size, 8 * part.num_values) for part in parts)
        if column.physical_type == "BYTE_ARRAY":
            texts.append(column.path)
            packed = {e for part in parts for e in part.deltas}
            if packed or column.logical_type.type not in PLAIN_LOGICAL:
                how = min(packed) if packed else column.logical_type.type
                told = f"column {name!r} is {how} over bytes, unsupported; write plain text"
                raise Refusal(422, told)
        elif column.physical_type == "FIXED_LEN_BYTE_ARRAY" and column.length > WIDEST:
            told = f"column {name!r} has values of {column.length:,} bytes, which are unsupported"
            raise Refusal(422, told)
    _check_size(size, limits)
    _check_twice(texts)
    return texts


def _check_names(served: Served, names: list[str]) -> None:
    _check_twice(names)
    served.check_columns(dict.fromkeys(names), "the table")


def _check_twice(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Refusal(422, f"the table has column {name[:100]!r} twice; rename one")
        seen.add(name)


def _check_rows(n_rows: int, limits: Limits) -> None:
    if n_rows > limits.max_batch_rows:
        raise Refusal(
            413,
            f"the table has more than {limits.max_batch_rows:,} rows, the most per request; "
            "send it in parts",
        )


def _check_size(size: int, limits: Limits) -> None:
    most = UNPACKED * limits.max_batch_body
    if size > most:
        raise Refusal(
            413,
            f"the table has {size:,} bytes unpacked, and {most:,} is the most; send it in parts",
        )


def _check_texts(table: pa.Table, limits: Limits) -> None:
    """Refuse texts that are too long, alone or together: dictionaries and views store a text once
    and repeat it for free."""
    size = 0
    for name, column in zip(table.column_names, table.columns, strict=True):
        for values, indices in (found for chunk in column.chunks for found in _texts(chunk)):
            texts = pl.Series(values)
            lengths = texts.cast(pl.Binary).bin.size().fill_null(0).to_numpy()
            longest = int(lengths.max(initial=0))  # in bytes; a letter may take several
            if longest > limits.max_text and texts.dtype == pl.String:
                longest = int(texts.str.len_chars().fill_null(0).to_numpy().max())
            if longest > limits.max_text:
                raise Refusal(422, too_long("the table", name, longest, limits.max_text))
            if indices is not None:
                lengths = lengths[pl.Series(indices).drop_nulls().to_numpy()]
            size += int(lengths.sum(dtype=np.int64))
    _check_size(size, limits)


def _texts(array: Any) -> Iterator[tuple[Any, Any]]:
    """Texts in an array, however nested, with their indices if it is a dictionary."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _texts(array.storage)
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _texts(child)
    elif any(is_it(kind) for is_it in LISTS):
        yield from _texts(array.flatten())
    elif any(is_it(kind) for is_it in TEXTS):
        yield array, None
    elif pa.types.is_dictionary(kind) and pa.types.is_primitive(kind.value_type):
        return
    elif pa.types.is_dictionary(kind) and any(is_it(kind.value_type) for is_it in TEXTS):
        yield array.dictionary, array.indices
    elif not (pa.types.is_primitive(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind)):
        raise Refusal(422, f"the table has a column of {str(kind)[:100]}, which is unsupported")


TEXTS = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)
KINDS: dict[str, Callable[[Served, bytes, Limits], Any]] = {
    STREAM: _read_stream,
    FILE: _read_file,
    PARQUET: _read_parquet,
}


# Writing ------------------------------------------------------------------------------------------


def _columns(served: Served, z: np.ndarray, choices: list[np.ndarray]) -> dict[str, Any]:
    """prediction and score; with more classes those of the likeliest (of a vote, the chosen) one,
    its name and all probabilities; with several targets, prefixed with the target's name."""
    heads = list(served.heads(z))
    out: dict[str, Any] = {}
    for k, (head, target, own) in enumerate(heads):
        prefix = f"{target.column}_" if len(heads) > 1 else ""
        predicted = LOSSES[head.loss].prediction(own.astype(np.float64))
        if head.size == 1:
            out |= {f"{prefix}prediction": predicted, f"{prefix}score": own.astype(np.float64)}
            continue
        at = choices[k] if choices else own.argmax(axis=1)
        rows = np.arange(len(own))
        out[f"{prefix}prediction"] = predicted[rows, at]
        out[f"{prefix}score"] = own[rows, at].astype(np.float64)
        out[f"{prefix}class"] = np.array(target.classes, dtype=object)[at]
        for name, chances in zip(target.classes, predicted.T, strict=True):
            out[f"{prefix}probability_{name}"] = np.ascontiguousarray(chances)
    return out


def _written(table: pa.Table, kind: str) -> bytes:
    out = io.BytesIO()
    if kind == PARQUET:
        pa.parquet.write_table(table, out)
    else:
        make = pa.ipc.new_stream if kind == STREAM else pa.ipc.new_file
        with make(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()
