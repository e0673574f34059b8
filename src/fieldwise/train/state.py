"""The state of a training run, and how it is saved and restored."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import checkpoint as checkpoints
from ..data.shuffle import Batches, Cursor
from ..engines import Engine, empty_like, fill, host
from ..errors import SettingError

__all__ = ["Run", "Saver"]

PART = 1 << 21  # entries of a table processed at a time
ENGINE_ARRAYS = ("table", "state", "field_weights", "field_state", "totals")


class Run:
    """One training run: everything that must be saved for it to continue."""

    def __init__(self, engine: Engine, batches: Batches, averages: int) -> None:
        self.engine = engine
        # Reads and writes checkpoints; an engine that holds part of the table brings its own.
        self.disk: Any = getattr(engine, "disk", checkpoints)
        self.batches = batches
        self.averages = averages
        self.history: list[dict[str, Any]] = []
        self.best: Any = None  # the table, of the engine's kind
        self.best_epoch = -1
        self.best_loss = np.inf
        self.metrics: dict[str, float] = {}
        self.seconds = 0.0  # of the epoch so far
        self.mean: Any = None  # of the epoch's tables so far
        self.best_field_weights: np.ndarray | None = None
        self.n_taken = 0

    def take(self, chunk: int) -> None:
        """Add the table to the epoch's mean if a snapshot is due after this chunk."""
        n_chunks, before = len(self.batches), self.n_taken
        n_points = min(2 * self.averages, n_chunks)
        self.n_taken = max(0, (chunk + 1) * n_points // n_chunks - n_points // 2)
        if self.averages == 1 or self.n_taken == before:
            return
        if self.mean is None:
            self.mean = empty_like(self.engine.state)
            fill(self.mean, 0.0)
        share = np.float32(1 / self.n_taken).item()
        for part in _parts(self.mean):
            self.mean[part] += share * (self.engine.table[part] - self.mean[part])

    def keep_current(self) -> None:
        """Make the engine's current table the result, rather than a mean or the best so far."""
        self.best = self.mean = self.best_field_weights = None
        self.best_epoch, self.metrics = -1, {}

    def swap(self) -> None:
        """Swap the engine's table with the epoch's mean; a second call undoes it."""
        if self.mean is not None:
            for part in _parts(self.mean):
                kept = empty_like(self.engine.table[part])
                fill(kept, self.engine.table[part])
                fill(self.engine.table[part], self.mean[part])
                fill(self.mean[part], kept)

    def save(self, folder: Path, identity: Mapping[str, Any]) -> None:
        body = {
            "identity": identity,
            "cursor": self.batches.cursor.to_dict(),
            "n_steps": self.engine.n_steps,
            "history": self.history,
            "best_epoch": self.best_epoch,
            "best_loss": self.best_loss.hex() if np.isfinite(self.best_loss) else None,
            "metrics": self.metrics,
            "epoch": [self.seconds, self.n_taken],
        }
        arrays = {name: host(getattr(self.engine, name)) for name in ENGINE_ARRAYS}
        for name in ("best", "mean", "best_field_weights"):
            if getattr(self, name) is not None:
                arrays[name] = host(getattr(self, name))
        self.disk.save(folder, body, arrays)

    def restore(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Restore the checkpoint in the folder, if there is one."""
        found = self.disk.load(folder)
        if found is None:
            return
        body, arrays = found
        for name, value in identity.items():
            if body["identity"].get(name) != value:
                raise SettingError(
                    f"{folder} is a checkpoint of another run: {name} was "
                    f"{body['identity'].get(name)!r} and is {value!r}"
                )
        for name in ENGINE_ARRAYS:
            fill(getattr(self.engine, name), arrays[name])
        self.engine.n_steps = body["n_steps"]
        self.batches.cursor = Cursor.from_dict(body["cursor"])
        self.history = body["history"]
        self.best_epoch, self.metrics = body["best_epoch"], body["metrics"]
        self.best_loss = float.fromhex(body["best_loss"]) if body["best_loss"] else np.inf
        for name, like in (("best", self.engine.table), ("mean", self.engine.state)):
            if name in arrays:
                setattr(self, name, empty_like(like))
                fill(getattr(self, name), arrays[name])
        if "best_field_weights" in arrays:
            self.best_field_weights = arrays["best_field_weights"].copy()
        self.seconds, self.n_taken = body["epoch"]


def _parts(table: Any) -> Iterator[slice]:
    """Slices of a few rows, so that work on a whole table needs no memory for a second one."""
    step = max(1, PART // table.shape[1])
    return (slice(start, start + step) for start in range(0, len(table), step))


class Saver:
    """Writes checkpoints, and says when the next is due."""

    def __init__(
        self, run: Run, folder: Path | None, identity: Mapping[str, Any], minutes: float
    ) -> None:
        self._run, self._folder, self._identity = run, folder, identity
        self._every = 60 * minutes
        self._last = time.monotonic()

    def now(self) -> None:
        if self._folder is not None:
            self._run.save(self._folder, self._identity)
            self._last = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint. All workers of a run must call this after every
        chunk: they agree on one answer."""
        is_due = self._folder is not None and time.monotonic() - self._last >= self._every
        return bool(self._run.disk.agree(is_due))
