"""Stores on other file systems (s3://, gs://, hdfs://, whatever fsspec knows), read through a copy
on this machine's disk, which is made once and mapped like any store."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, SettingError, StoreError
from ..files import disk_errors, sync_files, write_atomically

__all__ = ["cache_folder", "fetched", "is_remote", "is_there", "send"]

HEADER = "header.json"
ABANDONED_SECONDS = 86_400.0  # after which an unfinished copy is removed


def is_remote(path: Any) -> bool:
    if isinstance(path, Path) and re.match(r"\w\w+:/", str(path)):
        raise SettingError(f"{path} lost a slash as a Path: give a URL as text")
    return isinstance(path, str) and "://" in path


def cache_folder() -> Path:
    """The folder of copies: FIELDWISE_CACHE, or in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FIELDWISE_CACHE") or Path(home) / "fieldwise")


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path on it."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtra("fsspec", "distributed") from error
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url.rstrip("/"))
    except (ValueError, ImportError) as error:
        raise StoreError(f"{url} cannot be opened: {error}") from error
    return found


def _header(url: str) -> bytes | None:
    system, path = _opened(url)
    try:
        return bytes(system.cat_file(f"{path}/{HEADER}"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{url} cannot be read: {error}") from error


def is_there(url: str) -> bool:
    """Whether there is a store at a URL."""
    return _header(url) is not None


def _names(header: bytes, url: str) -> list[str]:
    """The names of a store's files, without its header."""
    try:
        body = json.loads(header)
        arrays = [a["file"] for a in body["arrays"].values()]
        names = [*arrays, body["vocabulary"]["file"], body["counts"]["file"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{url}/{HEADER} is damaged: {error!r}; encode again") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise StoreError(f"{url}/{HEADER} names {name!r}, which is not a file of it")
    return names


def fetched(url: str) -> Path:
    """The folder of this machine's copy, made if it is not there; each version of a store has its
    own."""
    header = _header(url)
    if header is None:
        raise StoreError(
            f"{url} is not a store: it has no {HEADER}. Make one with: fieldwise encode"
        )
    folder = _copy_of(url, header)
    if (folder / HEADER).is_file():
        return folder
    system, path = _opened(url)

    def fetch(made: Path) -> None:
        try:
            for name in _names(header, url):
                system.get_file(f"{path}/{name}", str(made / name))
                found, whole = (made / name).stat().st_size, system.size(f"{path}/{name}")
                if whole not in (None, found):
                    what = f"{found:,} bytes of {whole:,} came"
                    raise StoreError(f"{url}/{name}: {what}. Try again; nothing was kept")
        except FileNotFoundError as error:
            raise StoreError(f"{url}: {error} is missing; encode the table again") from error
        write_atomically(made / HEADER, header)

    _make(folder, fetch)
    return folder


def _make(folder: Path, fill: Callable[[Path], Any]) -> None:
    """Make a copy atomically: `fill` writes it into a temporary folder."""
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(".*.tmp"):  # others may be filling theirs
            if left.stat().st_mtime < time.time() - ABANDONED_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(".tmp", f".{folder.name}.", folder.parent))
        try:
            fill(made)
            sync_files(made)
            _put(made, folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _move_files(folder: Path, made: Path) -> None:
    for file in folder.iterdir():
        shutil.move(file, made / file.name)


def _copy_of(url: str, header: bytes) -> Path:
    place = f"{zlib.crc32(url.rstrip('/').encode()):08x}-{zlib.crc32(header):08x}"
    return cache_folder() / "stores" / place


def _put(made: Path, folder: Path) -> None:
    try:
        os.rename(made, folder)
    except OSError:  # another process was faster
        if not (folder / HEADER).is_file():
            raise


def send(folder: Path, url: str) -> None:
    """Upload a store to a URL, its header last; this machine keeps a copy."""
    system, path = _opened(url)
    header = (folder / HEADER).read_bytes()
    try:
        system.makedirs(path, exist_ok=True)
        for name in _names(header, str(folder)):
            system.put_file(str(folder / name), f"{path}/{name}")
        system.pipe_file(f"{path}/{HEADER}", header)
    except OSError as error:
        raise StoreError(f"{url} cannot be written: {error}") from error
    copy = _copy_of(url, header)
    if not copy.exists():
        _make(copy, partial(_move_files, folder))
