"""The model that is served, and the folder it comes from, which is watched.

A model is loaded from a private copy of its folder, so that no later change of the folder, not even
writing into its files, affects what is served. Copies are named by the model's id and shared by all
workers, which map the same table.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import FieldwiseError, ModelError
from ..files import read_sealed
from ..model import FieldwiseModel
from ..model_folder import FORMAT, HEADER, model_id
from .scoring import Served

__all__ = ["LiveModel"]

LOG = logging.getLogger("uvicorn.error")


class LiveModel:
    """`now` is the model that is served; `look` updates it from the folder.

    `spool` is the folder of the copies; the default is a temporary one, which `close` removes.
    """

    def __init__(self, path: str | Path, spool: str | Path | None = None) -> None:
        self.path = Path(path)
        self._own = None
        if spool is None:
            self._own = tempfile.TemporaryDirectory(prefix="fieldwise-serve-")
            spool = self._own.name
        self._spool = Path(spool)
        self._looked_at: Any = None
        self._refused: str | None = None  # why the model seen last is not served
        self._is_there = True
        self.n_loads = self.n_refusals = 0
        self.now: Served | None = None

    def close(self) -> None:
        if self._own is not None:
            self._own.cleanup()

    @property
    def problem(self) -> str | None:
        """What was wrong with the folder at the last look; None if nothing."""
        missing = f"{self.path / HEADER} is not there. Make a model with: fieldwise train"
        return self._refused if self._is_there else missing

    def load(self) -> Served:
        """The first look. Raises if no model can be loaded, not even another worker's copy."""
        self.look()
        if self.now is None:
            self._serve_copy()
        if self.now is None:
            raise ModelError(self.problem or f"{self.path} is not a model")
        return self.now

    def look(self) -> bool:
        """Load a new model; returns whether there was one. A broken model is refused once; one that
        could not be read because of a disk error is tried again at every look."""
        found = self._identity()
        self._is_there = found is not None
        if found is None or found == self._looked_at:
            return False
        try:
            served = self._loaded()
        except (Exception, pl.exceptions.PanicException) as error:
            if self._identity() != found:
                return False  # it changed meanwhile: look again
            self._looked_at = None if _is_of_disk(error) else found
            self._refuse(error)
            return False
        self._looked_at, self._refused = found, None
        if served is None:
            return False
        self._serve(served, self.path)
        return True

    def _serve(self, served: Served, source: Path) -> None:
        self.now = served
        self.n_loads += 1
        LOG.info("model %s is served from %s", served.id, source)

    def _serve_copy(self) -> None:
        """Serve an existing copy, whatever the folder holds."""
        for copy in self._copies():
            model = self._kept(copy.name)
            if model is not None:
                self._serve(self._ready(model, copy.name), copy)
                return

    def _identity(self) -> Any:
        """The identity of the folder's content, without reading it; None if there is no model."""
        found = {}
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    with suppress(OSError):  # a broken link
                        found[entry.name] = entry.stat()
        except OSError:
            return None
        if HEADER not in found or not stat.S_ISREG(found[HEADER].st_mode):
            return None
        return frozenset(
            (name, s.st_ino, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for name, s in found.items()
        )

    def _loaded(self) -> Served | None:
        """The folder's model, ready to serve; None if it is the one that is served already."""
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)  # a /tmp cleaner may remove it
        copy = Path(tempfile.mkdtemp(prefix=".", dir=self._spool))
        try:
            shutil.copyfile(self.path / HEADER, copy / HEADER)
            body = read_sealed(copy / HEADER, newest=FORMAT, what="model", error=ModelError)
            id = model_id(copy)
            names = _names(body, self.path)
            if self.now is not None and self.now.id == id:
                self._check_sizes(names, self._spool / id)
                return None
            model = self._kept(id)
            if model is None:
                self._check_room(names)
                for name in names:
                    shutil.copyfile(self.path / name, copy / name)
                model = FieldwiseModel.load(copy)
                with suppress(OSError):  # another worker was faster
                    copy.rename(self._spool / id)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        served = self._ready(model, id)
        for old in self._copies():  # workers that still map one keep it
            if old.name != id:
                shutil.rmtree(old, ignore_errors=True)
        return served

    def _ready(self, model: FieldwiseModel, id: str) -> Served:
        served = Served(model, id, time.time())
        served.warm(explaining=self.now is not None and self.now.is_explaining)
        return served

    def _copies(self) -> list[Path]:
        """Complete copies, nearly always one; the names of unfinished ones start with a dot."""
        if not self._spool.is_dir():
            return []
        return [copy for copy in self._spool.iterdir() if not copy.name.startswith(".")]

    def _kept(self, id: str) -> FieldwiseModel | None:
        """The model of a copy; None if missing or damaged, and then the copy is removed."""
        try:
            return FieldwiseModel.load(self._spool / id)
        except ModelError:
            shutil.rmtree(self._spool / id, ignore_errors=True)
            return None

    def _check_room(self, names: Iterable[str]) -> None:
        """Raise if there is no room for a complete copy: a full disk would affect others too."""
        needed = sum((self.path / name).stat().st_size for name in names)
        if needed > shutil.disk_usage(self._spool).free:
            raise ModelError(
                f"a copy of {self.path} takes {needed >> 20:,} MiB, more than is free in "
                f"{self._spool}. Free space, or set TMPDIR to another folder"
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _check_sizes(self, names: Iterable[str], copy: Path) -> None:
        """Raise if a file's size changed while the header stayed; files are not read."""
        for name in names:
            size = (self.path / name).stat().st_size
            if (copy / name).is_file() and (copy / name).stat().st_size != size:
                raise ModelError(f"{self.path / name} is cut short or was altered")

    def _refuse(self, error: BaseException) -> None:
        what = str(error) if isinstance(error, FieldwiseError) else f"{self.path}: {error!r}"
        what = re.sub(re.escape(f"{self._spool}/") + r"[^/\s]+", str(self.path), what)
        if what == self._refused:
            return
        self._refused = what
        self.n_refusals += 1
        kept = f"; {self.now.id} is still served" if self.now else ""
        LOG.error("a model is refused: %s%s", self._refused, kept)


def _names(body: Mapping[str, Any], path: Path) -> list[str]:
    """The files that a header names, all checked to exist."""
    names = list(body.get("checksums", {}))
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"{path / HEADER} names {name!r}, which is not a file of a model")
        if not (path / name).is_file():
            raise ModelError(f"{path / name} is missing")
    return names


def _is_of_disk(error: BaseException) -> bool:
    """Whether an error comes from the disk, and may pass without a change of the folder."""
    return isinstance(error, OSError) or isinstance(error.__cause__, OSError)
