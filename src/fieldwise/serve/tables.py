"""Whole tables over HTTP: Arrow and Parquet in, the same kind out."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from ..losses import LOSSES
from .limits import Limits, Refusal
from .scoring import Served, check_finite

__all__ = ["KINDS", "score_table"]

STREAM, FILE, PARQUET = (
    "application/vnd.apache.arrow.stream",
    "application/vnd.apache.arrow.file",
    "application/vnd.apache.parquet",
)
UNPACKED = 16  # times the limit of a body, the most that Parquet may grow to


def score_table(
    served: Served,
    body: bytes,
    kind: str,
    limits: Limits,
    deadline: float,
    unseen: list[tuple[str, int]],
) -> tuple[bytes, int]:
    """The predictions of a table's rows as a table of the same kind, and how many there are; how
    often fields had what training never saw is added to `unseen`."""
    table = _readable(served, body, kind, limits)
    n_unseen = np.zeros(served.model.layout.n_fields, np.int64)
    parts = []
    if table.num_rows:
        for _, coded in served.model.coded_chunks(table, n_unseen):
            parts.append(served.model.score_codes(*coded))
            if time.monotonic() > deadline:
                raise TimeoutError
    names = (field.name for field in served.fields)
    unseen += [(name, n) for name, n in zip(names, n_unseen.tolist(), strict=False) if n]
    none = np.empty((0, sum(head.size for head in served.model.objective.heads)))
    z = np.concatenate([part.reshape(len(part), -1) for part in parts] or [none])
    check_finite(z)
    return _written(pa.table(_columns(served, z)), kind), table.num_rows


def _readable(served: Served, body: bytes, kind: str, limits: Limits) -> pa.Table:
    """The columns that the model needs, checked: a table is as sound as who sent it."""
    try:
        table = KINDS[kind](body, limits)
        names = table.column_names
        _check_names(served, names)
        table = table.select(served.model.schema.columns)
        table.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise Refusal(422, f"the body is no sound table of {kind}: {error}") from error
    return table


def _check_names(served: Served, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Refusal(422, f"the table has column {twice[0]!r} twice; rename one")
    served.check_columns(dict.fromkeys(names), "the table")


def _batches(reader: Any, batches: Iterator[Any], limits: Limits) -> pa.Table:
    found, n_rows = [], 0
    for batch in batches:
        n_rows += batch.num_rows
        _check_rows(n_rows, limits)
        found.append(batch)
    return pa.Table.from_batches(found, reader.schema)


def _check_rows(n_rows: int, limits: Limits) -> None:
    if n_rows > limits.max_batch_rows:
        raise Refusal(
            413,
            f"the table has more than {limits.max_batch_rows:,} rows, the most of one call; "
            "send it in parts",
        )


def _read_stream(body: bytes, limits: Limits) -> pa.Table:
    with pa.ipc.open_stream(body) as reader:
        return _batches(reader, iter(reader), limits)


def _read_file(body: bytes, limits: Limits) -> pa.Table:
    with pa.ipc.open_file(body) as reader:
        every = (reader.get_batch(k) for k in range(reader.num_record_batches))
        return _batches(reader, every, limits)


def _read_parquet(body: bytes, limits: Limits) -> pa.Table:
    with pa.parquet.ParquetFile(pa.BufferReader(body)) as file:
        about = file.metadata
        _check_rows(about.num_rows, limits)
        size = sum(about.row_group(k).total_byte_size for k in range(about.num_row_groups))
        if size > UNPACKED * limits.max_batch_body:
            raise Refusal(
                413,
                f"the table has {size:,} bytes unpacked, and {UNPACKED * limits.max_batch_body:,} "
                "is the most; send it in parts",
            )
        return file.read()


KINDS: dict[str, Callable[[bytes, Limits], Any]] = {
    STREAM: _read_stream,
    FILE: _read_file,
    PARQUET: _read_parquet,
}


def _columns(served: Served, z: np.ndarray) -> dict[str, Any]:
    """prediction and score; of more classes the likeliest one's, with its name and all chances; of
    several targets each under its name."""
    heads = list(served.heads(z))
    out: dict[str, Any] = {}
    for head, target, own in heads:
        prefix = f"{target.column}_" if len(heads) > 1 else ""
        predicted = LOSSES[head.loss].prediction(own.astype(np.float64))
        if head.size == 1:
            out |= {f"{prefix}prediction": predicted, f"{prefix}score": own.astype(np.float64)}
            continue
        at = own.argmax(axis=1)
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
