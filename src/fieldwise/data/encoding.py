"""From any table to a store: every row is read once, coded provisionally, then settled.

Reading and parsing is the dear part, so the text is not read a second time once the counts are
known: provisional numbers are written beside the store and turned into codes in a last pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..errors import DataError, SchemaError, StoreError
from ..progress import progress
from .chunks import Chunk, Source, ahead
from .keys import Keys, as_number
from .learn import Learner, Provisional
from .profiling import infer_schema, profile
from .readers import format_schema, open_source
from .schema import Field, Schema, Target, check_names
from .store import Store, StoreWriter, disk_errors
from .text import NULL_WORDS
from .vocabulary import Vocabulary

__all__ = ["encode", "load_vocabulary", "schema_of"]


class _TargetReader:
    """Turns the target column into provisional numbers, and at the end into the stored ones."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._keys = Keys(Field(name=target.column, dtype=target.dtype))
        for known in target.classes:
            self._keys.ids(pl.Series([known]))
        self._seen: set[int] = set()

    def add(self, chunk: Chunk) -> np.ndarray:
        column = chunk.frame[self.target.column]
        if self.target.kind == "classes":
            out = self._keys.ids(column)
            missing = out == 0
            self._seen |= set(np.unique(out).tolist())
            out = out.astype(np.float64)
        else:
            out = as_number(column)
            missing = ~np.isfinite(out)
        if missing.any():
            row = int(np.argmax(missing))
            shown = column[row]
            what = "is missing" if shown is None else f"is {shown!r}, not a finite number"
            raise DataError(
                f"{chunk.locate(row)}: target {self.target.column!r} {what}; drop such rows first"
            )
        if self.target.kind == "numeric" and len(self._seen) < 2:
            self._seen |= set(np.unique(out)[:2].tolist())
        return out

    def finish(self) -> Target:
        if len(self._seen) < 2 and not self.target.classes:
            raise DataError(
                f"target {self.target.column!r} has the same value in every row: nothing to learn"
            )
        if self.target.kind == "numeric":
            return self.target
        found = self._keys.values().to_frame("key")
        number = pl.col("key").cast(pl.Float64, strict=False)
        order = [number, "key"] if self.target.dtype in ("integer", "float") else ["key"]
        new = found.filter(~pl.col("key").is_in(list(self.target.classes))).sort(order)
        if self.target.classes and new.height:
            raise DataError(
                f"target {self.target.column!r} holds {new['key'][0]!r}, which is not one of the "
                f"classes {list(self.target.classes)} seen before"
            )
        classes = self.target.classes or tuple(new["key"].to_list())
        self._position = np.zeros(len(classes) + 1)
        for position, key in enumerate(classes):
            self._position[int(self._keys.ids(pl.Series([key]))[0])] = position
        return replace(self.target, classes=classes)

    def settle(self, numbers: np.ndarray) -> np.ndarray:
        if self.target.kind == "numeric":
            return numbers.astype(np.float32)
        return self._position[numbers.astype(np.int64)].astype(np.float32)


def _weights(chunk: Chunk, name: str) -> np.ndarray:
    out = as_number(chunk.frame[name])
    bad = ~(np.isfinite(out) & (out >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"{chunk.locate(row)}: weight {name!r} is {chunk.frame[name][row]!r}; "
            "a weight is a finite number of at least 0"
        )
    return out


class _Spool:
    """Provisional rows on disk, beside the store they will become."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "provisional-0.bin"
        self._file = self.path.open("w+b")
        self._shapes: list[tuple[tuple[int, ...], np.dtype]] = []

    def write(self, *arrays: np.ndarray) -> None:
        for array in arrays:
            array = np.ascontiguousarray(array)
            self._file.write(array.reshape(-1).view(np.uint8).data)
            self._shapes.append((array.shape, array.dtype))

    def read(self, arrays: int) -> Iterator[list[np.ndarray]]:
        """What was written, `arrays` at a time, in order."""
        self._file.seek(0)
        for i in range(0, len(self._shapes), arrays):
            out = []
            for shape, dtype in self._shapes[i : i + arrays]:
                array = np.empty(shape, dtype=dtype)
                self._file.readinto(array.reshape(-1).view(np.uint8).data)
                out.append(array)
            yield out

    def close(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


def schema_of(
    source: Source,
    *,
    format: str = "auto",
    target: str | None = None,
    weight: str | None = None,
    drop: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    show: bool | None = False,
    **settings: Any,
) -> Schema:
    """The schema of a named format, or the one inferred from a look at every column."""
    settings = {k: v for k, v in settings.items() if v is not None}
    known = format_schema(format)
    if known is None:
        if format in ("libffm", "libsvm"):
            target = target or "label"
        check_names([*drop, *([target] if target else [])], source.columns, "column")
        columns = profile(source, columns=[c for c in source.columns if c not in drop], show=show)
        schema = infer_schema(columns, target=target, weight=weight, kinds=kinds, **settings)
        return replace(schema, dropped=tuple(drop))
    if target not in (None, known.target.column if known.target else None):
        raise SchemaError(f"{format} knows its target, {known.target.column!r}; leave it out")  # type: ignore[union-attr]
    if kinds:
        raise SchemaError(f"{format} knows its columns; leave kinds out or read it as csv")
    kept = tuple(f for f in known.fields if f.name not in drop)
    known = replace(known, fields=kept, dropped=(*known.dropped, *drop), weight=weight)
    return known.with_fields(**settings) if settings else known


def encode(
    data: Any,
    out: str | Path,
    *,
    target: str | None = None,
    schema: Schema | None = None,
    format: str = "auto",
    weight: str | None = None,
    drop: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    separator: str | None = None,
    null_words: Sequence[str] = NULL_WORDS,
    overwrite: bool = False,
    append: bool = False,
    show: bool | None = False,
    **settings: Any,
) -> Store:
    """Encode a table of any size into the store `out`, and open it.

    `append=True` adds rows to a store that is there: its codes stay, new categories come after.
    `settings` (min_count, unseen, n_bins) hold for all fields; see `infer_schema`.
    """
    source = open_source(data, format=format, separator=separator, null_words=null_words)
    start = None
    if append:
        store = Store(out)
        if schema is not None:
            store.require(schema)
        schema, start = store.schema, load_vocabulary(store)
    elif schema is None:
        schema = schema_of(
            source,
            format=format,
            target=target,
            weight=weight,
            drop=drop,
            kinds=kinds,
            show=show,
            **settings,
        )
    roles = [schema.target.column if schema.target else None, schema.weight]
    check_names([*schema.columns, *(r for r in roles if r)], source.columns, "column")
    widths = {
        "codes": len(schema),
        "values": len(schema.linear),
        "target": int(schema.target is not None),
        "weight": int(schema.weight is not None),
    }
    writer = (
        StoreWriter.append(Store(out))
        if append
        else StoreWriter.create(out, widths, overwrite=overwrite)
    )
    with writer:
        _write(source, schema, writer, start, show=show)
    return Store(out)


def _write(
    source: Source,
    schema: Schema,
    writer: StoreWriter,
    start: Vocabulary | None,
    *,
    show: bool | None,
) -> None:
    learner = Learner(schema, start)
    target = _TargetReader(schema.target) if schema.target else None
    with disk_errors(writer.path):
        spool = _Spool(writer.path)
    n_rows = 0
    try:
        with disk_errors(writer.path), progress("encoding", source.total, show=show) as tell:
            for chunk in ahead(source.chunks()):
                rows = learner.add(chunk)
                labels = target.add(chunk) if target else np.empty(0)
                weights = _weights(chunk, schema.weight) if schema.weight else np.empty(0)
                spool.write(rows.ids, rows.numbers, labels, weights)
                n_rows += chunk.frame.height
                tell(chunk.done, f"{n_rows:,} rows")
        vocabulary = learner.finish()
        final = vocabulary.schema
        if target:
            final = replace(final, target=target.finish())
        with progress("writing", n_rows, show=show) as tell:
            for parts in ahead(_settled(spool, learner, vocabulary, target, schema)):
                writer.write(**parts)
                tell(writer.n_rows)
        writer.finish(final, vocabulary.to_bytes())
    finally:
        spool.close()


def _settled(
    spool: _Spool,
    learner: Learner,
    vocabulary: Vocabulary,
    target: _TargetReader | None,
    schema: Schema,
) -> Iterator[dict[str, np.ndarray]]:
    """The arrays of the store, a chunk at a time."""
    for ids, numbers, labels, weights in spool.read(4):
        codes, values = learner.settle(Provisional(ids, numbers), vocabulary)
        parts = {"codes": codes}
        if schema.linear:
            parts["values"] = values
        if target:
            parts["target"] = target.settle(labels)
        if schema.weight:
            parts["weight"] = weights
        yield parts


def load_vocabulary(store: Store) -> Vocabulary:
    """The vocabulary a store was encoded with."""
    try:
        return Vocabulary.from_bytes(store.schema, store.vocabulary_bytes())
    except SchemaError as error:
        raise StoreError(f"{store.path}: {error}") from error
