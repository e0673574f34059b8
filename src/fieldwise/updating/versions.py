"""Versions of a model: earlier models of MODEL are kept in MODEL.versions and can be put back.

    clicks.model/             the model
    clicks.model.versions/
      0003/                   whole models, the oldest first; hard links where the disk has them
      0004/

The old model is kept before the new one takes its place, and that happens atomically
(`files.replace_folder`): a kill at any moment leaves a complete model at MODEL.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError, SettingError
from ..files import (
    disk_errors,
    put_back,
    read_sealed,
    remove_folder,
    replace_folder,
    sweep,
    sync_files,
    sync_folder,
    temporary_folder,
)
from ..model import FieldwiseModel
from ..model_folder import FORMAT, HEADER, check_replaceable, model_id

__all__ = ["KEEP", "Version", "being_changed", "publish", "rollback", "versions", "workplace"]

KEEP = 5
NUMBER = re.compile(r"\d{4,}")


@dataclass(frozen=True)
class Version:
    """A model on disk; `number` is None for the current one, at MODEL."""

    path: Path
    number: str | None
    id: str  # of its content
    when: dt.datetime  # when it was written
    rows: int  # trained on, including those of updates
    updates: int
    metrics: dict[str, float]

    @classmethod
    def of(cls, path: Path, number: str | None = None) -> Version:
        body = read_sealed(path / HEADER, newest=FORMAT, what="model", error=ModelError)
        written = dt.datetime.fromtimestamp((path / HEADER).stat().st_mtime, dt.UTC)
        rows, updates = body["settings"].get("rows", 0), len(body.get("lineage", []))
        return cls(path, number, model_id(path), written, rows, updates, body["metrics"])


def folder_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.versions")


def versions(path: str | Path) -> list[Version]:
    """The kept versions of a model, the oldest first, and last the model itself."""
    path = _real(path)
    put_back(path)
    kept = [Version.of(folder_of(path) / number, number) for number in _numbers(path)]
    if not (path / HEADER).is_file():
        raise ModelError(f"{path} is not a model: it has no {HEADER}" + _advice(kept))
    return [*kept, Version.of(path)]


def _advice(kept: list[Version]) -> str:
    return f"; put version {kept[-1].number} back with: fieldwise rollback" if kept else ""


def _real(path: str | Path) -> Path:
    """The path with links resolved: the folder is replaced, not a link to it."""
    return Path(os.path.realpath(path))


def _numbers(path: Path) -> list[str]:
    folder = folder_of(path)
    if not folder.is_dir():
        return []
    found = [p.name for p in folder.iterdir() if NUMBER.fullmatch(p.name)]
    return sorted(found, key=int)


@contextmanager
def being_changed(path: str | Path) -> Iterator[Path]:
    """The real path of a model, locked for changes; leftovers of a kill are cleaned up."""
    path = _real(path)
    with disk_errors(path):
        folder_of(path).mkdir(parents=True, exist_ok=True)
        handle = os.open(folder_of(path) / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ModelError(f"{path} is being updated by another process; try later") from error
        for left in folder_of(path).glob(".*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        put_back(path)
        sweep(path)
        check_replaceable(path)
        yield path
    finally:
        os.close(handle)


@contextmanager
def workplace(path: Path) -> Iterator[Path]:
    """A work folder beside a model that is being changed; after a kill, removed the next time."""
    work = folder_of(path) / ".work.tmp"
    with disk_errors(work):
        work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def publish(model: FieldwiseModel, path: Path, *, keep: int = KEEP) -> str | None:
    """Save a model as `path` and keep the one that is there; returns its number as a version."""
    if not keep >= 1:
        raise SettingError(f"keep={keep} must be at least 1")
    number = _kept(path) if (path / HEADER).is_file() else None
    model.save(path, overwrite=True)
    _prune(path, keep)
    return number


def _kept(path: Path) -> str:
    """Keep the current model as a version; returns its number."""
    numbers = _numbers(path)
    if numbers and model_id(folder_of(path) / numbers[-1]) == model_id(path):
        return numbers[-1]  # kept by a run that was killed before it changed the model
    number = f"{1 + int(numbers[-1]) if numbers else 1:04}"
    with disk_errors(folder_of(path)):
        temporary = folder_of(path) / f".{number}.tmp"
        _copy(path, temporary)
        os.rename(temporary, folder_of(path) / number)
        sync_folder(folder_of(path))
    return number


def _copy(path: Path, out: Path) -> None:
    """Copy a model by hard links, as its files are never written to, or else by content."""
    out.mkdir()
    for file in path.iterdir():
        try:
            os.link(file, out / file.name)
        except OSError:
            shutil.copy2(file, out / file.name)
    sync_files(out)


def _prune(path: Path, keep: int) -> None:
    for number in _numbers(path)[:-keep]:
        remove_folder(folder_of(path) / number)


def rollback(path: str | Path, to: str | int | None = None) -> Version:
    """Put a version back, the last unless `to` says which, and keep the model it replaces."""
    with being_changed(path) as real:
        numbers = _numbers(real)
        if not numbers:
            raise SettingError(f"{path} has no versions; there is nothing to put back")
        # An interrupted run may have kept the current model; that one is not put back.
        others = [n for n in numbers if not _is_in_use(real, folder_of(real) / n)] or numbers
        number = others[-1] if to is None else _chosen(str(to), numbers, real)
        version = folder_of(real) / number
        FieldwiseModel.load(version)  # an error unless it is complete
        with disk_errors(real):
            temporary = temporary_folder(real)
            _copy(version, temporary)
            if (real / HEADER).is_file() and not _is_in_use(real, version):
                _kept(real)
            replace_folder(temporary, real)
            remove_folder(version)
        return Version.of(real)


def _is_in_use(path: Path, version: Path) -> bool:
    """Whether the current model is this version."""
    return (path / HEADER).is_file() and model_id(path) == model_id(version)


def _chosen(to: str, numbers: list[str], path: Path) -> str:
    for number in numbers:
        if to.isdecimal() and int(number) == int(to):
            return number
    raise SettingError(f"{path} has no version {to}; it has {', '.join(numbers)}")


def facts(version: Version) -> dict[str, Any]:
    """A version as a dict for JSON."""
    return {
        "version": version.number,
        "id": version.id,
        "when": version.when.isoformat(timespec="seconds"),
        "rows": version.rows,
        "updates": version.updates,
        "metrics": version.metrics,
    }
