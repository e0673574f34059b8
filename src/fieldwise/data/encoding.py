"""From any table to a store: every row is coded provisionally, then settled.

Reading and parsing is the dear part, so the table is not read again once the counts are known:
provisional numbers are written beside the store and turned into codes in a last pass. Where the
schema is not known, one reading goes ahead to infer it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..errors import DataError, SchemaError, SettingError
from ..files import disk_errors
from ..progress import progress
from .chunks import Chunk, Source, ahead
from .keys import Keys
from .learn import Learner, Provisional
from .profiling import ColumnProfile, infer_schema, profile
from .readers import format_schema, open_source
from .schema import Field, Schema, Target, check_names, names_of
from .store import Store, StoreWriter
from .text import NULL_WORDS
from .values import numbers_of
from .vocabulary import Vocabulary
from .words import StoredWords

__all__ = ["encode", "load_vocabulary", "schema_of", "target_values"]


class _TargetReader:
    """Turns the target column into provisional numbers, and at the end into the stored ones."""

    def __init__(self, target: Target, *, may_be_constant: bool) -> None:
        self.target = target
        self._may_be_constant = may_be_constant
        known = pl.Series(target.classes, dtype=pl.String)
        self._keys = Keys(Field(name=target.column, dtype=target.dtype), known)
        self._seen: set[float] = set()

    def add(self, chunk: Chunk) -> np.ndarray:
        column = chunk.frame[self.target.column]
        if self.target.trials is not None:
            return self._share(chunk, self.target.trials)
        if self.target.kind == "classes":
            out = self._keys.ids(chunk).astype(np.float64)
            missing = out == 0
        else:
            out = numbers_of(chunk, self.target.column)
            missing = ~np.isfinite(out)
        if missing.any():
            row = int(np.argmax(missing))
            shown = column[row]
            what = "is missing" if shown is None else f"is {shown!r}, not a finite number"
            raise DataError(
                f"{chunk.locate(row)}: target {self.target.column!r} {what}; drop such rows first"
            )
        known = len(self.target.classes)
        if self.target.kind == "classes" and known and out.max(initial=0) > known:
            row = int(np.argmax(out > known))
            raise DataError(
                f"{chunk.locate(row)}: target {self.target.column!r} holds {column[row]!r}, which "
                f"is not one of the classes {list(self.target.classes)} seen before"
            )
        if len(self._seen) < 2:
            self._seen |= set(np.unique(out)[:2].tolist())
        return out

    def _share(self, chunk: Chunk, trials: str) -> np.ndarray:
        good, all_ = (numbers_of(chunk, name) for name in (self.target.column, trials))
        wrong = ~(np.isfinite(all_) & (good >= 0) & (good <= all_))
        if wrong.any():
            row = int(np.argmax(wrong))
            shown = [chunk.frame[name][row] for name in (self.target.column, trials)]
            raise DataError(
                f"{chunk.locate(row)}: {self.target.column!r} is {shown[0]!r} of {trials!r} "
                f"{shown[1]!r}; there must be at least 0 and at most all"
            )
        out: np.ndarray = good / np.maximum(all_, 1e-300)
        self._seen |= {0.0, 1.0} if good.any() and (good < all_).any() else set()
        return out

    def finish(self) -> Target:
        if len(self._seen) < 2 and not self._may_be_constant:
            raise DataError(
                f"target {self.target.column!r} has the same value in every row: nothing to learn"
            )
        if self.target.kind != "classes":
            return self.target
        found = self._keys.values()
        known = self.target.classes
        number = pl.col("key").cast(pl.Float64, strict=False)
        order = [number, pl.col("key")] if self.target.dtype in ("integer", "float") else ["key"]
        ranked = found.to_frame("key").with_row_index("id", offset=1)
        ranked = ranked if known else ranked.sort(order)
        self._position = np.zeros(len(found) + 1)
        self._position[ranked["id"].to_numpy()] = np.arange(len(found))
        return replace(self.target, classes=tuple(ranked["key"].to_list()))

    def settle(self, numbers: np.ndarray) -> np.ndarray:
        if self.target.kind != "classes":
            return numbers
        return self._position[numbers.astype(np.int64)]


def _weights(chunk: Chunk, name: str) -> np.ndarray:
    out = numbers_of(chunk, name)
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
        with suppress(OSError):  # on a full disk closing writes, and fails, once more
            self._file.close()
        self.path.unlink(missing_ok=True)


def schema_of(
    source: Source,
    *,
    format: str = "auto",
    target: str | Sequence[str] | None = None,
    trials: str | None = None,
    weight: str | None = None,
    drop: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    profiles: Sequence[ColumnProfile] | None = None,
    resolutions: bool = False,
    show: bool | None = False,
    **settings: Any,
) -> Schema:
    """The schema of a named format, or the one inferred from a look at every column.

    `profiles` is that look, where it was taken before. `resolutions` is of what is inferred.
    """
    settings = {k: v for k, v in settings.items() if v is not None}
    if isinstance(drop, str):
        raise SettingError(f"drop={drop!r} must be a list of columns")
    known = format_schema(format)
    if known is not None:
        if kinds:
            raise SchemaError(f"{format} knows its columns; leave kinds out or read it as csv")
        if trials:
            raise SchemaError(f"{format} knows its target; leave trials={trials!r} out")
        known = _named(known, format, source, target, drop)
        return replace(known, weight=weight).with_fields(**settings)
    targets = names_of(target or source.target)
    check_names([*drop, *targets], source.columns, "column")
    for name in targets:
        if name in drop:
            raise SettingError(f"column {name!r} is a target and cannot be dropped")
    if profiles is None:
        wanted = [c for c in source.columns if c not in drop]
        profiles = profile(source, columns=wanted, kinds=kinds, show=show)
    schema = infer_schema(
        profiles,
        target=targets,
        trials=trials,
        weight=weight,
        kinds=kinds,
        resolutions=resolutions,
        **settings,
    )
    return replace(schema, dropped=tuple(drop))


def _named(
    known: Schema,
    format: str,
    source: Source,
    target: str | Sequence[str] | None,
    drop: Sequence[str],
) -> Schema:
    """A format's own schema, less what is dropped."""
    label = known.target.column if known.target else None
    if names_of(target) not in ([], [label]):
        raise SchemaError(f"{format} knows its target, {label!r}; leave it out or read it as csv")
    if label in drop:
        raise SchemaError(f"column {label!r} is the target of {format} and cannot be dropped")
    check_names(drop, source.columns, "column in drop")
    kept = tuple(f for f in known.fields if f.name not in drop)
    return replace(known, fields=kept, dropped=(*known.dropped, *drop))


def encode(
    data: Any,
    out: str | Path,
    *,
    target: str | Sequence[str] | None = None,
    trials: str | None = None,
    schema: Schema | None = None,
    format: str = "auto",
    weight: str | None = None,
    drop: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    separator: str | None = None,
    quote: bool = True,
    null_words: Sequence[str] = NULL_WORDS,
    overwrite: bool = False,
    append: bool = False,
    start: Vocabulary | None = None,
    show: bool | None = False,
    **settings: Any,
) -> Store:
    """Encode a table of any size into the store `out`, and open it.

    `target` names a column to learn, or several. With `trials` it counts successes (clicks) of so
    many trials (impressions) a row.
    `append=True` adds rows to a store that is there: its codes stay, new categories come after.
    `start` is a vocabulary whose schema and codes a new store has in the same way.
    `settings` (min_count, unseen, n_bins, pooling, max_values) hold for all fields, `resolutions`
    for numbers; see `infer_schema`.
    """
    if start is not None:
        if append or schema is not None:
            raise SettingError("start has a schema of its own; leave out append and schema")
        schema = start.schema
    if append:
        store = Store(out)
        if schema is not None:
            store.require(schema)
        schema, start = store.schema, load_vocabulary(store)
    if schema is not None:
        given = {"drop": list(drop), "kinds": kinds, "trials": trials, **settings}
        given["overwrite"] = append and overwrite
        _nothing_else(schema, target, weight, given)
    source = open_source(
        data,
        format=format,
        separator=separator,
        quote=quote,
        null_words=null_words,
        schema=schema,
    )
    if schema is None:
        if target is None and source.target is None and format_schema(format) is None:
            raise SettingError(
                f"the target is missing: name the column to learn, one of "
                f"{', '.join(source.columns[:8])}"
            )
        about = {"target": target, "trials": trials, "weight": weight, **settings}
        schema = schema_of(source, format=format, show=show, drop=drop, kinds=kinds, **about)
    check_names([*schema.columns, *schema.roles], source.columns, "column")
    widths = {
        "codes": sum(schema.slots),  # those of lists are known when all rows have been seen
        "values": len(schema.valued),
        "target": len(schema.targets),
        "weight": int(schema.is_weighted),
    }
    writer = (
        StoreWriter.append(store)
        if append
        else StoreWriter.create(out, widths, overwrite=overwrite)
    )
    with writer:
        _write(source, schema, writer, start, widens=not append, show=show)
    return Store(out)


def _nothing_else(
    schema: Schema,
    target: str | Sequence[str] | None,
    weight: str | None,
    given: dict[str, Any],
) -> None:
    """A schema has the last word: what is said beside it must not be silently left aside."""
    labels = [t.column for t in schema.targets]
    if names_of(target) not in ([], labels):
        raise SettingError(f"target={target!r}, but the schema's is {', '.join(labels) or 'none'}")
    if weight not in (None, schema.weight):
        raise SettingError(f"weight={weight!r}, but the schema's weight is {schema.weight!r}")
    for name, value in given.items():
        if value:
            raise SettingError(f"{name}={value!r} has no say beside a schema that is fixed")


def _write(
    source: Source,
    schema: Schema,
    writer: StoreWriter,
    start: Vocabulary | None,
    *,
    widens: bool,
    show: bool | None,
) -> None:
    learner = Learner(schema, start, widens=widens)
    targets = [_TargetReader(t, may_be_constant=start is not None) for t in schema.targets]
    with disk_errors(writer.path):
        spool = _Spool(writer.path)
    n_rows = 0
    try:
        with progress("encoding", source.total, show=show) as tell:
            for chunk in ahead(source.chunks()):
                rows = learner.add(chunk)
                labels = np.array([target.add(chunk) for target in targets])
                weights = weight_values(chunk, schema) if schema.is_weighted else np.empty(0)
                with disk_errors(writer.path):
                    spool.write(labels, weights, *rows.arrays)
                n_rows += chunk.frame.height
                tell(chunk.done, f"{n_rows:,} rows")
        vocabulary = learner.finish()
        final = vocabulary.schema
        final = replace(final, targets=tuple(target.finish() for target in targets))
        writer.widen(codes=sum(final.slots), values=len(final.valued))
        with progress("writing", n_rows, show=show) as tell:
            for parts in ahead(_settled(spool, learner, vocabulary, targets, schema)):
                writer.write(**parts)
                tell(writer.n_rows)
        writer.finish(final, vocabulary.to_bytes(), [f.counts() for f in vocabulary.fields])
    finally:
        spool.close()


def _settled(
    spool: _Spool,
    learner: Learner,
    vocabulary: Vocabulary,
    targets: Sequence[_TargetReader],
    schema: Schema,
) -> Iterator[dict[str, np.ndarray]]:
    """The arrays of the store, a chunk at a time."""
    for labels, weights, *arrays in spool.read(2 + learner.n_arrays):
        codes, values = learner.settle(Provisional.of(arrays), vocabulary)
        parts = {"codes": codes}
        if schema.valued:
            parts["values"] = values
        if targets:
            parts["target"] = _columns(targets, labels)
        if schema.is_weighted:
            parts["weight"] = weights
        yield parts


def _columns(targets: Sequence[_TargetReader], numbers: np.ndarray) -> np.ndarray:
    """Provisional numbers (targets, n) as they are stored, (n, targets)"""
    pairs = zip(targets, numbers, strict=True)
    return np.stack([target.settle(row) for target, row in pairs], axis=1)


def target_values(chunk: Chunk, schema: Schema) -> np.ndarray:
    """(n, targets) of a chunk as this schema means them: positions of classes, or numbers."""
    if schema.target is None:
        raise SchemaError("the model has no target to compare with")
    check_names([t.column for t in schema.targets], chunk.frame.columns, "target")
    readers = [_TargetReader(t, may_be_constant=True) for t in schema.targets]
    numbers = np.array([reader.add(chunk) for reader in readers])
    for reader in readers:
        reader.finish()
    return _columns(readers, numbers)


def weight_values(chunk: Chunk, schema: Schema) -> np.ndarray:
    """The weights of a chunk's rows as this schema means them; ones where it names none."""
    out = np.ones(chunk.frame.height)
    for role, name in (("weight", schema.weight), ("trials", schema.trials)):
        if name is not None:
            check_names([name], chunk.frame.columns, role)
            out = out * _weights(chunk, name)
    return out


def load_vocabulary(store: Store) -> Vocabulary:
    """The vocabulary a store was encoded with."""
    return StoredWords(store).opened
