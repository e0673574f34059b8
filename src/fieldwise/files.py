"""Writing that is whole or not at all, and JSON that knows when it was altered.

Folders of ours (stores, checkpoints, models) have one JSON header that names every other file with
its checksum. It is written last and replaced in one step; what it does not name does not count.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import FieldwiseError, StoreError

__all__ = ["disk_errors", "fingerprint", "read_sealed", "sealed", "sync_folder", "write_atomically"]


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Say what a full disk or a forbidden folder means for the user."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing(path)).free
            raise StoreError(
                f"the disk is full while writing {path} ({free >> 20:,} MiB left there); "
                "nothing was kept. Free space or write elsewhere"
            ) from error
        raise StoreError(f"cannot write to {path}: {error.strerror or error}") from error


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def fingerprint(data: Any) -> str:
    """What tells one input from another: of a file its path, size and time, of a frame its columns
    and a checksum of its rows."""
    if isinstance(data, (str, Path)):
        path = Path(data)
        file = path / "header.json" if path.is_dir() else path
        if not file.is_file():
            return str(data)
        about = file.stat()
        return f"{data}, {about.st_size} bytes of {about.st_mtime_ns}"
    import polars as pl

    try:
        frame = data if isinstance(data, pl.DataFrame) else pl.DataFrame(data)
    except (TypeError, ValueError, pl.exceptions.PolarsError):  # told by its shape alone
        return f"a table of {getattr(data, 'shape', '?')}"
    rows = zlib.crc32(frame.hash_rows().to_numpy().tobytes())
    return f"a table of {frame.columns} with checksum {rows}"


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes | Iterable[bytes]) -> None:
    """All of it or nothing: a temporary name, synced, then renamed over. Content may come in
    pieces."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sealed(body: Mapping[str, Any]) -> bytes:
    """JSON with a checksum of its content."""
    text = json.dumps(body, ensure_ascii=False, sort_keys=True)
    whole = {**body, "checksum": zlib.crc32(text.encode())}
    return (json.dumps(whole, ensure_ascii=False, sort_keys=True, indent=1) + "\n").encode()


def read_sealed(
    file: Path, *, newest: int, what: str, error: type[FieldwiseError] = StoreError
) -> dict[str, Any]:
    """The content of a sealed file whose `format` is at most `newest`."""
    try:
        content = file.read_bytes()
    except OSError as problem:
        raise error(f"{file} cannot be read: {problem.strerror}") from problem
    try:
        body: dict[str, Any] = json.loads(content)
        said = body.pop("checksum")
        version = body["format"]
        if isinstance(version, int) and version > newest:
            raise error(
                f"{file}: the {what} is of format {version}, this fieldwise reads up to {newest}: "
                "upgrade fieldwise"
            )
        text = json.dumps(body, ensure_ascii=False, sort_keys=True)
        if zlib.crc32(text.encode()) != said:
            raise error(f"{file} was altered: its checksum does not fit")
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise error(f"{file} is damaged: {problem}") from problem
    return body
