"""The encoded table on disk: arrays of fixed-width rows, mapped when read, and one JSON header.

    store/
      header.json              format, rows, schema, checksums, the names of the files below
      codes-1.bin              int32 (n, S)     codes within each field, -1 for unseen
      values-1.bin             float32 (n, v)   of linear fields and lists, if there are any
      target-1.bin             float64 (n, targets)
      weight-1.bin             float64 (n, 1)   if there is one
      vocabulary-1.parquet     field, category, code, count; handled as bytes
      counts-1.bin             int64, how often each code was seen, field by field

The header defines the store: it is written last and replaced in one step, and files it does not
name are leftovers of a run that did not finish. Appending writes past the rows that the header
counts, so a kill at any moment leaves the store as it was before or as it should be after.

Needs only NumPy.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import SchemaError, StoreError
from ..files import disk_errors, read_sealed, sealed, write_atomically
from .remote import fetched, is_remote, is_there
from .schema import Schema

__all__ = ["ARRAYS", "Store", "StoreWriter", "is_store"]

FORMAT = 1
HEADER = "header.json"
ARRAYS = {"codes": "<i4", "values": "<f4", "target": "<f8", "weight": "<f8"}
OWN = re.compile(
    r"header\.json|(codes|values|target|weight|counts|provisional)-\d+\.bin"
    r"|vocabulary-\d+\.parquet"
    r"|\.(header\.json|vocabulary-\d+\.parquet|counts-\d+\.bin)(\.\d+)?\.tmp"
)
BLOCK_ROWS = 1 << 16  # rows per checksum; existing stores keep the number in their header


@dataclass
class _Array:
    """One of the arrays: its name and number of columns."""

    name: str
    columns: int

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(ARRAYS[self.name])

    @property
    def row_bytes(self) -> int:
        return self.columns * self.dtype.itemsize


class _Checksums:
    """CRC-32 of each block of rows, fed in pieces of any size."""

    def __init__(self, block_bytes: int) -> None:
        self._block = block_bytes
        self._filled = 0
        self.sums: list[int] = []

    def add(self, piece: memoryview) -> None:
        while len(piece):
            if self._filled == 0:
                self.sums.append(0)
            part = piece[: self._block - self._filled]
            self.sums[-1] = zlib.crc32(part, self.sums[-1])
            self._filled = (self._filled + len(part)) % self._block
            piece = piece[len(part) :]


def _read_header(path: Path) -> dict[str, Any]:
    file = path / HEADER
    if not file.is_file():
        what = "is not a folder" if not path.is_dir() else f"has no {HEADER}"
        raise StoreError(f"{path} is not a store: it {what}. Make one with: fieldwise encode")
    return read_sealed(file, newest=FORMAT, what="store")


def is_store(data: Any) -> bool:
    """Whether `data` is an encoded table, on this or another file system."""
    if is_remote(data):
        return is_there(str(data))
    return isinstance(data, (str, Path)) and (Path(data) / HEADER).is_file()


class StoreWriter:
    """Writes rows into a new store, or appends to one. Use as a context manager:

        with StoreWriter.create(path, {"codes": 39, "target": 1}) as writer:
            writer.write(codes=..., target=...)
            writer.finish(schema, vocabulary_bytes, counts)

    Nothing takes effect before `finish` replaces the header; an error leaves things as they were.
    """

    def __init__(self, path: Path, header: dict[str, Any], n_rows: int) -> None:
        self.path = path
        self._header = header
        self._made = [p for p in (path, *path.parents) if not p.exists()]
        self._arrays = {k: _Array(k, v["columns"]) for k, v in header["arrays"].items()}
        self._first_row = self.n_rows = n_rows
        self._finished = False

    @classmethod
    def create(
        cls, path: str | Path, columns: Mapping[str, int], *, overwrite: bool = False
    ) -> StoreWriter:
        """A new store; `columns` says which arrays it has and how wide each is."""
        path = Path(path)
        with disk_errors(path):
            is_there, is_folder = path.exists(), path.is_dir()
        if is_there and not is_folder:
            raise StoreError(f"{path} is a file; a store is a folder")
        own = _own_files(path) if is_folder else []
        if (path / HEADER).exists() and not overwrite:
            raise StoreError(f"{path} holds a store already; overwrite it or choose another folder")
        if is_folder and set(path.iterdir()) - set(own):
            raise StoreError(f"{path} is a folder with other files in it; choose an empty one")
        numbers = [p.stem.rsplit("-", 1)[-1] for p in own]
        generation = 1 + max((int(n) for n in numbers if n.isdigit()), default=0)
        arrays = {
            name: {"file": f"{name}-{generation}.bin", "dtype": ARRAYS[name], "columns": width}
            for name, width in columns.items()
            if width
        }
        header = {"format": FORMAT, "block_rows": BLOCK_ROWS, "arrays": arrays}
        return cls(path, {**header, "generation": generation}, 0)

    @classmethod
    def append(cls, store: Store) -> StoreWriter:
        """A writer that appends rows to an existing store."""
        if _read_header(store.path) != store.header:
            raise StoreError(f"{store.path} has changed since it was opened; open it again")
        return cls(store.path, deepcopy(store.header), store.n_rows)

    def __enter__(self) -> StoreWriter:
        self._files: dict[str, BinaryIO] = {}
        block = int(self._header["block_rows"])
        self._sums = {k: _Checksums(block * a.row_bytes) for k, a in self._arrays.items()}
        try:
            self._open()
        except BaseException:  # even a Ctrl-C here must leave nothing
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for name, spec in self._arrays.items():
                file = (self.path / self._header["arrays"][name]["file"]).open(
                    "r+b" if self._first_row else "wb"
                )
                file.seek(self._first_row * spec.row_bytes)
                self._files[name] = file
        if self._first_row:
            self._continue_checksums()

    def widen(self, **columns: int) -> None:
        """Set the widths of arrays that were not known at first; no row may be written yet."""
        for name, width in columns.items():
            if name in self._arrays and self._arrays[name].columns != width:
                if self.n_rows:
                    raise StoreError(f"{self.path} has rows already; {name} cannot be widened")
                self._header["arrays"][name]["columns"] = width
                self._arrays[name] = spec = _Array(name, width)
                self._sums[name] = _Checksums(int(self._header["block_rows"]) * spec.row_bytes)

    def _continue_checksums(self) -> None:
        store = Store(self.path)
        whole = self._first_row // store.block_rows
        tail = store.read(whole * store.block_rows, self._first_row)
        for name, sums in self._sums.items():
            sums.sums = list(self._header["arrays"][name]["checksums"][:whole])
            sums.add(_as_bytes(tail[name], self._arrays[name]))

    def write(self, **arrays: np.ndarray) -> None:
        """Write the next rows of every array."""
        n_rows = {len(a) for a in arrays.values()}
        if set(arrays) != set(self._files) or len(n_rows) != 1:
            raise StoreError(f"a row needs {sorted(self._files)}, not {sorted(arrays)}")
        with disk_errors(self.path):
            for name, spec in self._arrays.items():
                piece = _as_bytes(arrays[name], spec)
                self._files[name].write(piece)
                self._sums[name].add(piece)
        self.n_rows += n_rows.pop()

    def finish(self, schema: Schema, vocabulary: bytes, counts: Sequence[np.ndarray]) -> None:
        """Sync everything, then replace the header so that it takes effect."""
        body = self._header
        if "schema" in body:
            old = Schema.from_dict(body["schema"])
            if old.names != schema.names:
                raise StoreError(
                    f"{self.path} was encoded with another schema: {old.difference(schema)}"
                )
            body["generation"] += 1
        with disk_errors(self.path):
            for name, file in self._files.items():
                file.flush()
                file.truncate(self.n_rows * self._arrays[name].row_bytes)
                os.fsync(file.fileno())
                body["arrays"][name]["checksums"] = self._sums[name].sums
            words = f"vocabulary-{body['generation']}.parquet"
            write_atomically(self.path / words, vocabulary)
            body["n_rows"] = self.n_rows
            body["schema"] = schema.to_dict()
            body["vocabulary"] = {"file": words, "checksum": zlib.crc32(vocabulary)}
            seen = np.concatenate(counts).astype("<i8").tobytes()
            file_of_counts = f"counts-{body['generation']}.bin"
            write_atomically(self.path / file_of_counts, seen)
            body["counts"] = {
                "file": file_of_counts,
                "sizes": [len(c) for c in counts],
                "checksum": zlib.crc32(seen),
            }
            write_atomically(self.path / HEADER, sealed(body))
        self._finished = True
        _sweep(self.path, body)

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            with suppress(OSError):  # flushing the buffer repeats the error of a full disk
                file.close()
        if self._finished:
            return
        if (self.path / HEADER).exists():
            self._undo()
            return
        for left in _own_files(self.path) if self.path.is_dir() else ():
            left.unlink(missing_ok=True)
        with suppress(OSError):  # someone else may have put a file there
            for folder in self._made:
                folder.rmdir()

    def _undo(self) -> None:
        """Truncate files to the rows of before."""
        with suppress(StoreError):
            _sweep(self.path, _read_header(self.path))
        for name, spec in self._arrays.items():
            file = self.path / self._header["arrays"][name]["file"]
            if self._first_row and file.exists():
                os.truncate(file, self._first_row * spec.row_bytes)


def _as_bytes(array: np.ndarray, spec: _Array) -> memoryview:
    array = np.ascontiguousarray(array, dtype=spec.dtype)
    if array.ndim == 1:
        array = array[:, None]
    if array.shape[1] != spec.columns:
        raise StoreError(f"{spec.name} has {array.shape[1]} columns, the store {spec.columns}")
    return array.reshape(-1).view(np.uint8).data


def _own_files(path: Path) -> list[Path]:
    """The files in the folder that a writer made, finished or not; only these are ever removed."""
    return [p for p in path.iterdir() if OWN.fullmatch(p.name)]


def _sweep(path: Path, body: Mapping[str, Any]) -> None:
    """Remove our files that the header does not name."""
    arrays = (a["file"] for a in body["arrays"].values())
    kept = {HEADER, body["vocabulary"]["file"], body["counts"]["file"], *arrays}
    for file in _own_files(path):
        if file.name not in kept:
            file.unlink(missing_ok=True)


def _check_header(body: Mapping[str, Any], schema: Schema) -> None:
    """Raise a ValueError if a header's numbers and names are not what a writer would write."""
    n_rows, block_rows = body["n_rows"], body["block_rows"]
    arrays, sizes = body["arrays"], body["counts"]["sizes"]
    numbers = [n_rows, block_rows - 1, *(n - 1 for n in sizes), body["generation"]]
    numbers += [a["columns"] - 1 for a in arrays.values()]
    sums = [body[name]["checksum"] for name in ("vocabulary", "counts")]
    n_blocks = -(-n_rows // block_rows) if block_rows else 0
    for array in arrays.values():
        if len(array["checksums"]) != n_blocks:
            raise ValueError(f"{len(array['checksums'])} checksums of {n_blocks} blocks")
        sums += array["checksums"]
    if not all(type(n) is int and n >= 0 for n in (*numbers, *sums)):
        raise ValueError("a number in it is negative, or not whole")
    widths = {"codes": sum(schema.slots), "values": len(schema.valued)}
    wide = {name: array["columns"] for name, array in arrays.items()}
    if set(wide) - set(ARRAYS) or any(wide.get(name, 0) != n for name, n in widths.items()):
        raise ValueError(f"arrays of {wide} columns, where the schema has {widths}")
    if len(sizes) != len(schema):
        raise ValueError(f"counts of {len(sizes)} fields, not {len(schema)}")
    for said in (body["vocabulary"], body["counts"], *arrays.values()):
        if not OWN.fullmatch(said["file"]):
            raise ValueError(f"it names {said['file']!r}, which is not a file of a store")


class Store:
    """An encoded table, opened for reading. A block is checked when it is first read.

    Parameters
    ----------
    path : the folder that `encode` wrote, or its URL on a file system that fsspec knows.

    Attributes
    ----------
    schema : its `Schema`.
    n_rows : the number of rows.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = fetched(str(path)) if is_remote(path) else Path(path)
        self.header = _read_header(self.path)
        try:
            self.schema = Schema.from_dict(self.header["schema"])
            _check_header(self.header, self.schema)
            self.n_rows = self.header["n_rows"]
            self.block_rows = self.header["block_rows"]
            self._arrays = {k: _Array(k, v["columns"]) for k, v in self.header["arrays"].items()}
            self._maps = {k: self._map(a) for k, a in self._arrays.items()}
        except SchemaError as error:
            raise SchemaError(f"{self.path / HEADER}: {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise StoreError(f"{self.path / HEADER} is damaged: {error!r}; encode again") from error
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}") from error
        n_blocks = -(-self.n_rows // self.block_rows)
        self._checked = {k: np.zeros(n_blocks, dtype=bool) for k in self._arrays}

    def _file(self, name: str) -> Path:
        """The file of an array."""
        return self.path / str(self.header["arrays"][name]["file"])

    def _map(self, array: _Array) -> np.ndarray:
        file = self._file(array.name)
        expected = self.n_rows * array.row_bytes
        found = file.stat().st_size if file.is_file() else 0
        if found < expected:
            raise StoreError(
                f"{file} is cut short: {found:,} bytes of {expected:,}; encode the table again"
            )
        shape = (self.n_rows, array.columns)
        if self.n_rows == 0:
            return np.empty(shape, dtype=array.dtype)
        return np.memmap(file, dtype=array.dtype, mode="r", shape=shape)

    def __len__(self) -> int:
        return self.n_rows

    @property
    def names(self) -> list[str]:
        """The names of its arrays: codes, and if present values, target, weight."""
        return list(self._arrays)

    def vocabulary_bytes(self) -> bytes:
        return self._checked_file("vocabulary")

    def counts(self) -> list[np.ndarray]:
        """How often each code was seen, (d_i,) for each field."""
        content, sizes = self._checked_file("counts"), self.header["counts"]["sizes"]
        if len(content) != 8 * sum(sizes):
            raise StoreError(f"{self.path / HEADER} is damaged: {len(content)} bytes of counts")
        return np.split(np.frombuffer(content, "<i8"), np.cumsum(sizes)[:-1])

    def _checked_file(self, name: str) -> bytes:
        """The checked content of the file of the vocabulary or the counts."""
        said = self.header[name]
        file = self.path / said["file"]
        try:
            content = file.read_bytes()
        except OSError as error:
            raise StoreError(
                f"{file} cannot be read: {error.strerror}; if rows were appended since the store "
                "was opened, open it again"
            ) from error
        if zlib.crc32(content) != said["checksum"]:
            raise StoreError(f"{file} was altered; encode the table again")
        return content

    def array(self, name: str) -> np.ndarray:
        """The whole array (n_rows, columns), mapped, without checking it."""
        return self._maps[name]

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Rows start .. stop of every array, after checking their blocks."""
        if not 0 <= start <= stop <= self.n_rows:
            raise StoreError(f"rows {start} to {stop} of {self.path}, which has {self.n_rows}")
        self._check_length()
        self._check(start, stop)
        return {k: m[start:stop] for k, m in self._maps.items()}

    def _check_length(self) -> None:
        """Raise if a file was truncated: reading past a mapped file's end kills the process."""
        for name, spec in self._arrays.items():
            file = self._file(name)
            # A removed file stays mapped, whatever has its name now.
            if file.is_file() and file.stat().st_size < self.n_rows * spec.row_bytes:
                raise StoreError(f"{file} was cut short while it was read; encode the table again")

    def _check(self, start: int, stop: int) -> None:
        for name, spec in self._arrays.items():
            checked = self._checked[name]
            said = self.header["arrays"][name]["checksums"]
            for block in range(start // self.block_rows, -(-stop // self.block_rows)):
                if checked[block]:
                    continue
                low = block * self.block_rows
                high = min(low + self.block_rows, self.n_rows)
                if zlib.crc32(_as_bytes(self._maps[name][low:high], spec)) != said[block]:
                    raise StoreError(
                        f"{self._file(name)} was altered: rows {low:,} to {high:,} do not match "
                        "their checksum; encode the table again"
                    )
                if name == "codes" and not self._are_codes(self._maps[name][low:high]):
                    raise StoreError(
                        f"{self.path / HEADER} is damaged: rows {low:,} to {high:,} have codes "
                        "that no category has; encode the table again"
                    )
                checked[block] = True

    def _are_codes(self, codes: np.ndarray) -> bool:
        """Whether each is -1 or a category's: kernels read the table's rows without checks."""
        sizes = np.repeat(self.header["counts"]["sizes"], self.schema.slots)
        return bool((codes.min(axis=0) >= -1).all() and (codes.max(axis=0) < sizes).all())

    def verify(self) -> None:
        """Check every block now."""
        self._check(0, self.n_rows)
        self.vocabulary_bytes()
        self.counts()

    def require(self, schema: Schema) -> None:
        """Raise unless the store was encoded with this schema."""
        difference = schema.difference(self.schema, settled=True)
        if difference:
            raise StoreError(f"{self.path} was encoded with another schema: {difference}")

    def append(
        self,
        schema: Schema | None = None,
        vocabulary: bytes | None = None,
        counts: Sequence[np.ndarray] | None = None,
        **arrays: np.ndarray,
    ) -> Store:
        """Append rows; returns the store opened anew.

        `schema`, `vocabulary` and `counts` replace the old ones if new categories were learned; the
        codes of old categories must be the same.
        """
        with StoreWriter.append(self) as writer:
            writer.write(**arrays)
            words = self.vocabulary_bytes() if vocabulary is None else vocabulary
            writer.finish(schema or self.schema, words, self.counts() if counts is None else counts)
        return Store(self.path)
