"""Anything that holds a table, as a `Source` of chunks: paths, globs, folders, frames, arrays.

`open_source` is the one door. `criteo` and `avazu` are formats with a schema of their own.
"""

from __future__ import annotations

import glob
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import DataError, SettingError, not_one_of
from .blocks import read_errors
from .chunks import Source
from .frames import FrameSource, LazySource, to_frame
from .libffm import LibffmSource
from .remote import is_remote
from .schema import Field, Schema, Target
from .store import HEADER
from .text import NULL_WORDS, TextSource

__all__ = [
    "FORMATS",
    "avazu_schema",
    "check_not_read",
    "check_unchanged",
    "criteo_schema",
    "format_schema",
    "identity_of",
    "is_paths",
    "is_source",
    "open_source",
    "paths_of",
    "stamps_of",
]

FORMATS = ("auto", "csv", "tsv", "parquet", "arrow", "libffm", "libsvm", "criteo", "avazu")

ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".ffm": "libffm",
    ".libffm": "libffm",
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".libfm": "libsvm",
}
COMPRESSED = (".gz", ".zst", ".zstd")
LOOKED_AT = 1 << 20  # bytes at either end of a file that tell it from another
IN_MEMORY = "pandas, polars or pyarrow frames, NumPy arrays, dicts of columns, Arrow streams"

CRITEO_INTEGERS = [f"I{i}" for i in range(1, 14)]
CRITEO_CATEGORIES = [f"C{i}" for i in range(1, 27)]
AVAZU_FIELDS = [
    "hour",
    "C1",
    "banner_pos",
    "site_id",
    "site_domain",
    "site_category",
    "app_id",
    "app_domain",
    "app_category",
    "device_id",
    "device_ip",
    "device_model",
    "device_type",
    "device_conn_type",
    "C14",
    "C15",
    "C16",
    "C17",
    "C18",
    "C19",
    "C20",
    "C21",
]


def criteo_schema(min_count: int = 35) -> Schema:
    """13 integers by the log rule, 26 categories; the paper's minimum count."""
    numbers = [
        Field(name=n, kind="numeric", binning="log2", min_count=min_count) for n in CRITEO_INTEGERS
    ]
    categories = [Field(name=n, min_count=min_count) for n in CRITEO_CATEGORIES]
    return Schema(fields=(*numbers, *categories), targets=(Target(column="label"),))


def avazu_schema(min_count: int = 4) -> Schema:
    """22 categories, `id` dropped and `hour` as it is; the paper's minimum count."""
    return Schema(
        fields=tuple(Field(name=n, min_count=min_count) for n in AVAZU_FIELDS),
        targets=(Target(column="click"),),
        dropped=("id",),
    )


def format_schema(format: str, min_count: int | None = None) -> Schema | None:
    """The schema that comes with a format, or None where it has to be inferred."""
    make = {"criteo": criteo_schema, "avazu": avazu_schema}.get(format)
    if make is None:
        return None
    return make() if min_count is None else make(min_count)


def open_source(
    data: Any,
    *,
    format: str = "auto",
    separator: str | None = None,
    quote: bool = True,
    null_words: Sequence[str] = NULL_WORDS,
    schema: Schema | None = None,
) -> Source:
    """A source over `data`: a path, a glob, a folder, a list of paths, or a table in memory.

    `separator`, `quote` and `null_words` are for text. `schema`, where the table is to be read as
    an earlier one was, settles what libffm leaves open.
    """
    if format not in FORMATS:
        raise not_one_of(f"format={format!r}", format, FORMATS)
    if isinstance(data, (str, Path)) or is_paths(data):
        paths = _paths(data)
        format = _format(paths, format)
        if format in ("libffm", "libsvm"):
            return LibffmSource(paths, with_fields=format == "libffm", schema=schema)
        return _open_files(paths, format, separator, quote, null_words)
    if is_source(data):
        return data
    if isinstance(data, pl.LazyFrame):
        return LazySource([("the query", data)])
    if data is None or isinstance(data, (bytes, int, float)):
        raise DataError(f"{type(data).__name__} is not a table; pass a path, or {IN_MEMORY}")
    return FrameSource(data)


def is_source(data: Any) -> bool:
    """Whether it is a `Source` already."""
    return all(hasattr(data, name) for name in ("chunks", "columns", "kinds", "target"))


def is_paths(data: Any) -> bool:
    """Whether it is a list of paths."""
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(isinstance(p, (str, Path)) for p in data)
    )


def paths_of(data: Any) -> list[Path]:
    """The files of a table on disk; none of one in memory."""
    return _paths(data) if isinstance(data, (str, Path)) or is_paths(data) else []


def _paths(data: Any) -> list[Path]:
    """The files meant, in the order of their names."""
    if not isinstance(data, (str, Path)):
        return [p for item in data for p in _paths(item)]
    path = Path(data)
    with read_errors(path):
        is_folder, is_there = path.is_dir(), path.exists()
    if is_folder:
        _refuse_ours(path)
        known = [p for p in sorted(path.rglob("*")) if p.is_file() and _ending(p) in ENDINGS]
        known = [p for p in known if not _is_hidden(p.relative_to(path))]
        if not known:
            raise DataError(
                f"{path} holds no table: no file ends with {', '.join(sorted(set(ENDINGS)))} "
                "(also .gz and .zst of text)"
            )
        return known
    if is_there:
        if not path.is_file():
            raise DataError(
                f"{path} is a pipe or a device, which can be read once; tables are read more "
                "often, so save it as a file first"
            )
        return [path]
    with read_errors(path):
        # A pattern such as **/** finds a file in more ways than one.
        found = sorted({Path(p) for p in glob.glob(str(data), recursive=True)})
        found = [p for p in found if p.is_file()]
    if not found:
        raise DataError(f"{data}: no such file or folder")
    return found


def _refuse_ours(folder: Path) -> None:
    """A model and a store hold tables of their own, which no one means."""
    for header, beside, what in (
        ("model.json", "table.safetensors", "a model, not a table; name a table of rows"),
        ("header.json", "codes-*.bin", "a store, of codes; name the table it was made from"),
    ):
        if (folder / header).is_file() and any(folder.glob(beside)):
            raise DataError(f"{folder} is {what}")


def stamps_of(data: Any) -> dict[Path, Any]:
    """What tells whether the files of a table are changed later."""
    return {path: _stamp(path) for path in paths_of(data)}


def check_unchanged(stamps: Mapping[Path, Any]) -> None:
    """Files are read more than once: what one reading learned has to be true of the next."""
    for path, stamp in stamps.items():
        if _stamp(path) != stamp:
            raise DataError(
                f"{path} was changed while it was read; read a copy, or wait until nobody writes it"
            )


def check_not_read(out: Path, data: Any) -> None:
    """Refuse to write over a file of the table that is read."""
    if out.exists() and any(path.samefile(out) for path in paths_of(data)):
        raise SettingError(f"{out} is the table that is read; choose another name for the output")


def identity_of(data: Any, *, times: bool = True) -> Any:
    """What tells one table from another, as JSON has it; None of files that are gone.

    Of a file its name, its size, what it begins and ends with and, unless a copy is as good
    (`times`), when it was written; of a store its header, of a remote one its URL; of a table in
    memory its columns and a checksum of its rows.
    """
    if is_remote(data):
        return data
    if isinstance(data, (str, Path)) and (Path(data) / HEADER).is_file():
        return _about(Path(data) / HEADER, times=times)
    if isinstance(data, (str, Path)) or is_paths(data):
        try:
            return [_about(path, times=times) for path in paths_of(data)]
        except (DataError, OSError):
            return None
    try:
        if isinstance(data, pl.LazyFrame):
            return data.explain(optimized=False)
        frame = to_frame(data)
        return [frame.columns, zlib.crc32(frame.hash_rows().to_numpy().tobytes())]
    except (DataError, TypeError, pl.exceptions.PolarsError):  # told by its shape alone
        return list(getattr(data, "shape", ()))


def _about(path: Path, *, times: bool) -> list[Any]:
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        begin = file.read(LOOKED_AT)
        file.seek(max(0, about.st_size - LOOKED_AT))
        found = [path.name, about.st_size, zlib.crc32(begin + file.read(LOOKED_AT))]
    return [*found, about.st_mtime_ns] if times else found


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _ending(path: Path) -> str:
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _format(paths: list[Path], format: str) -> str:
    if format != "auto":
        return format
    formats = {_guess(p) for p in paths}
    if len(formats) > 1:
        raise DataError(
            f"files of several formats together ({', '.join(sorted(formats))}); "
            "name one, for example with a glob: 'data/*.csv'"
        )
    return formats.pop()


def _guess(path: Path) -> str:
    """The format of a file, by its first bytes where they tell, else by its name."""
    with read_errors(path), path.open("rb") as file:
        head = file.read(6)
    if head[:4] == b"PAR1":
        return "parquet"
    if head == b"ARROW1":
        return "arrow"
    return ENDINGS.get(_ending(path), "csv")


def _open_files(
    paths: list[Path],
    format: str,
    separator: str | None,
    quote: bool,
    null_words: Sequence[str],
) -> Source:
    for path in paths:
        with read_errors(path):
            empty = path.stat().st_size == 0
        if empty:
            raise DataError(f"{path} is empty")
    if format in ("parquet", "arrow"):
        scan: Callable[..., pl.LazyFrame]
        scan = pl.scan_parquet if format == "parquet" else pl.scan_ipc
        return LazySource([(str(p), scan(p, glob=False)) for p in paths])
    if format == "criteo":
        columns = ["label", *CRITEO_INTEGERS, *CRITEO_CATEGORIES]
        return TextSource(paths, separator="\t", columns=columns, quote=False, null_words=())
    if format == "avazu":
        source = TextSource(paths, separator=",", quote=False, null_words=())
        missing = [c for c in AVAZU_FIELDS if c not in source.columns]
        if missing:
            raise DataError(
                f"{paths[0]} is not Avazu's train.csv: column {missing[0]!r} is missing"
            )
        return source
    separator = separator or ("\t" if format == "tsv" else None)
    return TextSource(paths, separator=separator, quote=quote, null_words=null_words)
