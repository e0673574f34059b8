"""The model that is served, and the folder it comes from, which is watched.

A model is loaded from a private copy of its folder, so nothing that is done to the folder
afterwards, not even writing into its files, touches what is served. Copies are named by the model's
id and shared by all workers, which map the table of the same one.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import FieldwiseError, ModelError
from ..files import read_sealed
from ..model import FORMAT, HEADER, FieldwiseModel
from ..versions import model_id
from .scoring import Served

__all__ = ["LiveModel"]

LOG = logging.getLogger("uvicorn.error")


class LiveModel:
    """`now` is what is served; `look` sees to it that it is what the folder holds.

    `spool` is the folder of the copies; one of its own, gone with `close`, unless given.
    """

    def __init__(self, path: str | Path, spool: str | Path | None = None) -> None:
        self.path = Path(path)
        self._own = None
        if spool is None:
            self._own = tempfile.TemporaryDirectory(prefix="fieldwise-serve-")
            spool = self._own.name
        self._spool = Path(spool)
        self._looked_at: Any = None
        self._refused: str | None = None  # why what was looked at last is not served
        self._is_there = True
        self.n_loads = self.n_refusals = 0
        self.now: Served | None = None

    def close(self) -> None:
        if self._own is not None:
            self._own.cleanup()

    @property
    def problem(self) -> str | None:
        """What is wrong with the folder as it was seen last."""
        return self._refused if self._is_there else f"{self.path / HEADER} is not there"

    def load(self) -> Served:
        """The first look: a model that cannot be loaded is an error."""
        self.look()
        if self.now is None:
            raise ModelError(self.problem or f"{self.path} is not a model")
        return self.now

    def look(self) -> bool:
        """Load what is new; whether something was. What is broken is refused, once."""
        found = self._identity()
        self._is_there = found is not None
        if found is None or found == self._looked_at:
            return False
        try:
            served = self._loaded()
        except (Exception, pl.exceptions.PanicException) as error:
            if self._identity() != found:
                return False  # it changed meanwhile: look again
            self._looked_at = found
            self._refuse(error)
            return False
        self._looked_at, self._refused = found, None
        if served is None:
            return False
        self.now = served
        self.n_loads += 1
        LOG.info("model %s is served from %s", served.id, self.path)
        return True

    def _identity(self) -> Any:
        """What tells the folder's content from another, without reading it; None without one."""
        try:
            with os.scandir(self.path) as entries:
                found = {entry.name: entry.stat() for entry in entries}
        except OSError:
            return None
        if HEADER not in found or not stat.S_ISREG(found[HEADER].st_mode):
            return None
        return frozenset((name, s.st_ino, s.st_mtime_ns, s.st_size) for name, s in found.items())

    def _loaded(self) -> Served | None:
        """The folder's model, ready to serve; None if it is the one that is served already."""
        copy = Path(tempfile.mkdtemp(prefix=".", dir=self._spool))
        try:
            shutil.copyfile(self.path / HEADER, copy / HEADER)
            body = read_sealed(copy / HEADER, newest=FORMAT, what="model", error=ModelError)
            id = model_id(copy)
            if self.now is not None and self.now.id == id:
                return None
            kept = self._spool / id
            if kept.is_dir():
                model = FieldwiseModel.load(kept)
            else:
                self._copy(body.get("checksums", {}), copy)
                model = FieldwiseModel.load(copy)
                with suppress(OSError):  # another worker was faster
                    copy.rename(kept)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        served = Served(model, id, time.time())
        served.warm(explaining=self.now is not None and self.now.is_explaining)
        self._forget(id)
        return served

    def _copy(self, names: Iterable[str], copy: Path) -> None:
        for name in names:
            if Path(name).name != name:
                raise ModelError(f"{self.path / HEADER} names {name!r}, which is no file of it")
            if not (self.path / name).is_file():
                raise ModelError(f"{self.path / name} is missing")
            shutil.copyfile(self.path / name, copy / name)

    def _forget(self, id: str) -> None:
        """Other copies; who still has one mapped keeps it."""
        for old in self._spool.iterdir():
            if old.name != id and not old.name.startswith("."):
                shutil.rmtree(old, ignore_errors=True)

    def _refuse(self, error: BaseException) -> None:
        self.n_refusals += 1
        what = str(error) if isinstance(error, FieldwiseError) else f"{self.path}: {error!r}"
        self._refused = re.sub(re.escape(f"{self._spool}/") + r"[^/\s]+", str(self.path), what)
        kept = f"; {self.now.id} is served on" if self.now else ""
        LOG.error("a model is refused: %s%s", self._refused, kept)
