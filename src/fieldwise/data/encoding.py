"""From any table to a store: rows get provisional numbers, then codes.

Reading and parsing is the expensive part, so the table is not read again once the counts are known:
provisional numbers are written beside the store and turned into codes in a last pass. Without a
schema, one more pass before infers it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import DataError, SchemaError, SettingError, StoreError
from .chunks import Source
from .inferring import infer_schema
from .labels import TargetReader
from .learn import Learner
from .profiling import ColumnProfile, looks_at, profile
from .provisional import Reading, Spool, removed, write_all
from .readers import check_unchanged, format_schema, open_source, paths_of, stamps_of
from .remote import is_remote, is_there, send
from .schema import Schema, check_names, names_of
from .store import Store, StoreWriter
from .text import NULL_WORDS
from .vocabulary import Vocabulary
from .words import StoredWords

Over = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]

__all__ = ["Over", "encode", "load_vocabulary", "schema_of"]


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
    """The schema of a named format, or one inferred from the columns' profiles.

    `profiles` are computed unless given. `resolutions` applies to what is inferred.
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
    """A format's own schema, without dropped columns."""
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
    over: Over | None = None,
    show: bool | None = False,
    **settings: Any,
) -> Store:
    """Encode a table of any size into the store `out`, and open it.

    Parameters
    ----------
    data : a path, a glob, a list of paths, a frame: anything that holds a table.
    out : the folder of the store, or a URL.
    target : the column to learn, or several.
    trials : where the target counts successes (clicks): the column of trials (impressions).
    schema : what every column is, instead of guessing.
    format : "auto", "csv", "tsv", "parquet", "arrow", "libffm", "libsvm", "criteo" or "avazu".
    weight : the column of sample weights.
    drop : columns to leave out.
    kinds : a dict of column to kind, where the guess is wrong; see `FieldEncoder`.
    separator : between cells of text; None detects it.
    quote : whether quotes in text are special.
    null_words : texts that mean "no value".
    overwrite : replace an existing store.
    append : add rows to an existing store: its codes stay, new categories come after.
    start : a vocabulary whose schema and codes a new store keeps.
    over : a parallel map: calls a function on many items, wherever it likes, and returns the
        results in order. With it every file of the table is read separately.
    show : a progress bar; None shows one on a terminal.
    settings : for all fields: min_count, unseen, n_bins, pooling, max_values and resolutions; see
        `FieldEncoder`.
    """
    given = {k: v for k, v in locals().items() if k not in ("data", "out", "settings")}
    if is_remote(out):
        return _encoded_there(data, str(out), {**given, **settings})
    if over is not None and (append or start is not None):
        raise SettingError("append and start read the table in one process; leave out over")
    if start is not None:
        if append or schema is not None:
            raise SettingError("start has a schema of its own; leave out append and schema")
        schema = start.schema
    store = Store(out) if append else None
    if store is not None:
        if schema is not None:
            store.require(schema)
        schema, start = store.schema, load_vocabulary(store)
    if schema is not None:
        beside = {"drop": list(drop), "kinds": kinds, "trials": trials, **settings}
        beside["overwrite"] = append and overwrite
        _nothing_else(schema, target, weight, beside)
    stamps = stamps_of(data)
    options: dict[str, Any] = {
        "format": format, "separator": separator, "quote": quote, "null_words": tuple(null_words)
    }  # fmt: skip
    source = open_source(data, **options, schema=schema)
    parts = None if over is None else _parts(data, source, options)
    if schema is None:
        if target is None and source.target is None and format_schema(format) is None:
            raise SettingError(
                f"the target is missing: name the column to learn, one of "
                f"{', '.join(source.columns[:8])}"
            )
        about = {"target": target, "trials": trials, "weight": weight, **settings}
        if over is not None and parts is not None and format_schema(format) is None:
            wanted = [c for c in source.columns if c not in drop]
            about["profiles"] = _profiles(over, parts, wanted, kinds)
        schema = schema_of(source, format=format, show=show, drop=drop, kinds=kinds, **about)
    check_names([*schema.columns, *schema.roles], source.columns, "column")
    with _writer(out, schema, store, overwrite=overwrite) as writer:
        if over is None or parts is None:
            spool = Spool(writer.path / "provisional-0.bin")
            with removed([spool]):
                reading = Reading.of(source, schema, spool, start, widens=not append, show=show)
                check_unchanged(stamps)
                reading.write(writer, show=show)
        else:
            _write_parts(over, parts, schema, writer, stamps, show=show)
    return Store(out)


def _encoded_there(data: Any, url: str, options: Mapping[str, Any]) -> Store:
    """Encode into a store on another file system: made here, then uploaded."""
    if options["append"] or (not options["overwrite"] and is_there(url)):
        raise StoreError(f"{url} holds a store already; overwrite it or choose another place")
    with tempfile.TemporaryDirectory() as folder:
        encode(data, Path(folder) / "store", **{**options, "overwrite": False})
        send(Path(folder) / "store", url)
    return Store(url)


def _writer(
    out: str | Path, schema: Schema, store: Store | None, *, overwrite: bool
) -> StoreWriter:
    """A writer of a new store, or one that appends to `store`."""
    if store is not None:
        return StoreWriter.append(store)
    widths = {
        "codes": sum(schema.slots),  # lists are widened once all rows have been read
        "values": len(schema.valued),
        "target": len(schema.targets),
        "weight": int(schema.is_weighted),
    }
    return StoreWriter.create(out, widths, overwrite=overwrite)


def _write_parts(
    over: Over,
    parts: Sequence[_Part],
    schema: Schema,
    writer: StoreWriter,
    stamps: Mapping[Path, Any],
    *,
    show: bool | None,
) -> None:
    spools = [Spool(writer.path / f"provisional-{k}.bin") for k in range(len(parts))]
    with removed(spools):
        asked = [(part, schema, spool) for part, spool in zip(parts, spools, strict=True)]
        readings = list(over(_read_part, asked))
        check_unchanged(stamps)
        targets = [TargetReader(t, may_be_constant=False) for t in schema.targets]
        write_all(readings, Learner(schema, widens=True), targets, writer, show=show)


def _read_part(asked: tuple[_Part, Schema, Spool]) -> Reading:
    part, schema, spool = asked
    return Reading.of(part.opened(), schema, spool)


def _look_at_part(asked: tuple[_Part, list[str], Mapping[str, str] | None]) -> list[Any]:
    part, columns, kinds = asked
    return looks_at(part.opened(), columns, kinds)


@dataclass(frozen=True)
class _Part:
    """One of the files of a table, and how it is read."""

    path: str
    options: Mapping[str, Any]

    def opened(self) -> Source:
        return open_source(self.path, **self.options)


def _parts(data: Any, source: Source, options: Mapping[str, Any]) -> list[_Part]:
    """The files of a table, each to be read by another process."""
    paths = paths_of(data)
    if len(paths) < 2 or source.target is not None:
        raise SettingError(
            "several processes can only share a table of several files; this one is a single file, "
            "a table in memory, or libffm: encode it in one process"
        )
    out = [_Part(str(path.absolute()), options) for path in paths]
    for part in out:
        if list(part.opened().columns) != list(source.columns):
            raise DataError(f"{part.path} and {out[0].path} have different columns")
    return out


def _profiles(
    over: Over, parts: Sequence[_Part], columns: list[str], kinds: Mapping[str, str] | None
) -> list[ColumnProfile]:
    """Every column's profile, from looks at all parts."""
    looks: list[Any] = []
    for found in over(_look_at_part, [(part, columns, kinds) for part in parts]):
        if looks:
            for mine, theirs in zip(looks, found, strict=True):
                mine.absorb(theirs)
        else:
            looks = found
    return [look.finish() for look in looks]


def _nothing_else(
    schema: Schema,
    target: str | Sequence[str] | None,
    weight: str | None,
    given: dict[str, Any],
) -> None:
    """Raise for options that a fixed schema overrides, rather than ignore them silently."""
    labels = [t.column for t in schema.targets]
    if names_of(target) not in ([], labels):
        raise SettingError(f"target={target!r}, but the schema's is {', '.join(labels) or 'none'}")
    if weight not in (None, schema.weight):
        raise SettingError(f"weight={weight!r}, but the schema's weight is {schema.weight!r}")
    for name, value in given.items():
        if value:
            raise SettingError(f"{name}={value!r} has no effect: the schema is fixed")


def load_vocabulary(store: Store) -> Vocabulary:
    """The vocabulary that a store was encoded with."""
    return StoredWords(store).opened
