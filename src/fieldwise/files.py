"""Atomic writes, and JSON sealed with a checksum.

Our folders (stores, checkpoints, models) have one JSON header that names every other file with its
checksum. It is written last and replaced in one step; files it does not name are ignored.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .errors import FieldwiseError, StoreError

__all__ = [
    "array_on_disk",
    "checksum",
    "disk_errors",
    "put_back",
    "read_sealed",
    "remove_folder",
    "replace_folder",
    "sealed",
    "sweep",
    "sync_files",
    "sync_folder",
    "temporary_folder",
    "write_atomically",
]

AT_HERE, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of writing (a full disk, no permission) into a StoreError with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing(path)).free
            raise StoreError(
                f"the disk is full while writing {path} ({free >> 20:,} MiB left there); "
                "nothing was kept. Free space or write elsewhere"
            ) from error
        why = error.strerror or error
        if error.errno == errno.ENOENT and not path.parent.exists():
            why = f"there is no folder {path.parent}; make it first"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST) and _existing(path).is_file():
            why = f"{_existing(path)} is a file"
        raise StoreError(f"cannot write to {path}: {why}") from error


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def sync_folder(path: Path) -> None:
    """Sync to disk the names in a folder, or the content of a file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_files(folder: Path) -> None:
    """Sync a folder and each of its files."""
    for path in [*folder.iterdir(), folder]:
        sync_folder(path)


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file whole or not at all: under a temporary name, synced, then renamed. `content` may
    come in pieces."""
    temporary = temporary_name(path)
    with disk_errors(path):
        sweep(path)
        try:
            with temporary.open("wb") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(OSError):  # report the first error, not those that follow from it
                temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def array_on_disk(file: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of zeros, mapped from a new file, for arrays that do not fit in memory."""
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as made:
            n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            if hasattr(os, "posix_fallocate"):  # writing to a map on a full disk kills
                os.posix_fallocate(made.fileno(), 0, n_bytes)
            made.truncate(n_bytes)
        return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)


def temporary_name(path: Path) -> Path:
    """This process's temporary name for `path`, in the same folder."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def temporary_folder(path: Path) -> Path:
    """This process's temporary name for a folder, with nothing there."""
    out = temporary_name(path)
    # In a container a process may have the same id as one that was killed before.
    shutil.rmtree(out, ignore_errors=True)
    return out


def remove_folder(path: Path) -> None:
    """Remove a folder atomically: after a kill it is whole, or no part of it is at `path`."""
    _remove(_left(path, "tmp"))
    aside = temporary_folder(path)
    with disk_errors(path), suppress(FileNotFoundError):
        os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def replace_folder(new: Path, path: Path) -> None:
    """Move the folder `new` to `path`, and delete what was there.

    Linux swaps two names atomically, so a whole folder is at `path` at every instant. Elsewhere
    there is none between two renames; after a kill there, `put_back` repairs it.
    """
    if not path.exists():
        os.rename(new, path)
    elif _exchanged(new, path):
        sync_folder(path.parent)
        shutil.rmtree(new)
    else:
        aside = path.with_name(f".{path.name}.{os.getpid()}.old")
        os.rename(path, aside)
        os.rename(new, path)
        shutil.rmtree(aside)
    sync_folder(path.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Swap two names atomically; false if the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    names = (os.fsencode(os.path.abspath(one)), os.fsencode(os.path.abspath(other)))
    return bool(rename(AT_HERE, names[0], AT_HERE, names[1], EXCHANGE) == 0)


def put_back(path: Path) -> None:
    """Restore the folder at `path` after `replace_folder` was killed half way."""
    for left in _left(path, "old"):
        if not path.exists():
            os.rename(left, path)


def sweep(path: Path) -> None:
    """Remove what killed processes left beside `path`; nobody else may be writing it."""
    _remove([*_left(path, "old"), *_left(path, "tmp")])


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def _left(path: Path, kind: str) -> list[Path]:
    """Temporary files and folders of `path` whose processes have ended."""
    name = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.{kind}")
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    found = [(p, m) for p in beside if (m := name.fullmatch(p.name))]
    return sorted(p for p, m in found if not _is_running(int(m[1])))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def checksum(file: Path) -> int:
    """CRC-32 of a whole file, read in pieces."""
    total = 0
    with file.open("rb") as content:
        while piece := content.read(1 << 24):
            total = zlib.crc32(piece, total)
    return total


def sealed(body: Mapping[str, Any]) -> bytes:
    """`body` as JSON, with a checksum of its content."""
    text = json.dumps(body, ensure_ascii=False, sort_keys=True)
    whole = {**body, "checksum": zlib.crc32(text.encode())}
    return (json.dumps(whole, ensure_ascii=False, sort_keys=True, indent=1) + "\n").encode()


def read_sealed(
    file: Path, *, newest: int, what: str, error: type[FieldwiseError] = StoreError
) -> dict[str, Any]:
    """The checked content of a sealed file, whose `format` must be at most `newest`."""
    try:
        content = file.read_bytes()
    except OSError as problem:
        raise error(f"{file} cannot be read: {problem.strerror}") from problem
    try:
        body: dict[str, Any] = json.loads(content)
        said = body.pop("checksum")
        version = body["format"]
        if type(version) is not int:
            raise error(f"{file} is damaged: format {version!r} is not a whole number")
        if version > newest:
            raise error(
                f"{file}: the {what} is of format {version}, this fieldwise reads up to {newest}: "
                "upgrade fieldwise"
            )
        text = json.dumps(body, ensure_ascii=False, sort_keys=True)
        if zlib.crc32(text.encode()) != said:
            raise error(f"{file} was altered: its checksum does not match")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as problem:
        raise error(f"{file} is damaged: {problem}") from problem
    return body
