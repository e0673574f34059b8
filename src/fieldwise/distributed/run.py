"""Training by many workers, which a launcher has started: every one runs the same loop over its own
columns, the first one also encodes the table before and writes the model after."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..callbacks import heard, tell
from ..data.remote import is_remote
from ..data.store import Store
from ..engines import StepSettings
from ..engines.sharded import ShardedEngine
from ..errors import FieldwiseError, SettingError
from ..fitting import (
    fit_store,
    is_saved,
    prepared_store,
    save_result,
    work_folder,
    work_of,
)
from ..layout import Layout
from ..model import FieldwiseModel
from ..objective import Objective
from ..problem import Problem
from ..train import Fit, Running, TrainSettings, train
from .grid import share_columns
from .peers import CONNECT_SECONDS, SILENT_SECONDS, TorchPeers, joined
from .shards import ShardedDisk, column_pairs

__all__ = ["train_sharded", "train_table", "work_folder"]


class _AtFirst(Exception):
    """The fit is the first worker's; there is nothing more to do here."""


def train_table(
    data: Any,
    out: str | Path,
    *,
    reading: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    running: Running | None = None,
    n_groups: int = 1,
    connect: float = CONNECT_SECONDS,
    silent: float = SILENT_SECONDS,
    **fitting: Any,
) -> FieldwiseModel | None:
    """What `fitting.train_table` does, by all workers of a run; the first one has the model.

    All of them see the same folders, and meet within `connect` seconds. One that is not heard of
    for `silent` seconds is taken for lost, and the run ends. A launcher that starts a run again
    after a worker died goes on from the last checkpoint.
    """
    out = Path(out)
    with joined(n_groups, connect, silent) as peers:
        own = _of_worker(running or Running(), peers)
        _refuse_unlike(peers, "versions", _versions())
        _refuse_unlike(peers, "data", str(data))

        def prepare() -> tuple[str, dict[str, Any]] | None:
            if is_saved(out, own, overwrite=overwrite):
                return None
            store, rest = prepared_store(data, out, reading, overwrite, own, fitting)
            return str(data if is_remote(data) else store.path), rest

        prepared = peers.at_first(prepare)
        if prepared is None:
            return FieldwiseModel.load(out) if peers.is_first else None
        path, fitting = prepared
        store = _opened(path, peers)
        _refuse_unlike(peers, "data", store.header)
        _refuse_unlike(peers, "settings", repr(sorted(fitting.items(), key=str)))
        trainer = partial(train_sharded, peers)
        if not peers.is_first:
            own = replace(own, checkpoint=work_folder(out) / "checkpoint")
            try:
                fit_store(store, running=own, trainer=trainer, **fitting)
            except _AtFirst:
                peers.at_first(lambda: None)  # until the model is written, or could not be
            return None
        with work_of(out) as work:
            own = replace(own, checkpoint=work / "checkpoint")
            with heard(running.callbacks if running else ()) as close:
                model = fit_store(store, running=own, trainer=trainer, **fitting)
                peers.at_first(lambda: save_result(model, out, overwrite=overwrite))
        close(model, out)
        return model


def _of_worker(running: Running, peers: TorchPeers) -> Running:
    """What a worker runs with: threads of its own, one that tells, and a stop that all agree on."""
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    jobs = running.n_jobs or max(1, (os.cpu_count() or 1) // beside)
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    told = running.callbacks if peers.is_first else ()

    def agreed(record: dict[str, Any]) -> bool:
        return bool(peers.told(tell(told, record)))

    return replace(
        running,
        n_jobs=jobs,
        callbacks=(agreed,),
        show=running.show if peers.is_first else False,
        resume=running.resume or again,
        keeps_best=False,  # workers do not hear of a Ctrl-C at the same step
    )


def _versions() -> dict[str, str]:
    import torch

    return {
        "fieldwise": __version__,
        "numpy": np.__version__,
        "torch": torch.__version__,
        "byteorder": sys.byteorder,
    }


def _refuse_unlike(peers: TorchPeers, what: str, mine: Any) -> None:
    """Workers that do not have what the first has are an error that names them."""
    every = peers.gathered(mine)
    for rank, theirs in enumerate(every):
        if theirs != every[0]:
            raise SettingError(
                f"worker {rank} has other {what} than worker 0: {_told_apart(theirs, every[0])}"
            )


def _told_apart(theirs: Any, first: Any) -> str:
    if isinstance(theirs, dict) and isinstance(first, dict):
        for name in first:
            if theirs.get(name) != first[name]:
                return f"{name} is {theirs.get(name)!r}, not {first[name]!r}"[:300]
    return f"{theirs!r}, not {first!r}"[:300]


def _opened(path: str, peers: TorchPeers) -> Store:
    """The store, which every worker has to see."""
    try:
        store, problem = Store(path), None
    except FieldwiseError as error:
        store, problem = None, str(error)
    for rank, said in enumerate(peers.gathered(problem)):
        if said is not None:
            raise SettingError(f"worker {rank} does not see the encoded table: {said}")
    assert store is not None
    return store


def train_sharded(
    peers: TorchPeers, problem: Problem, settings: TrainSettings, running: Running | None = None
) -> Fit:
    """What `train.train` gives, by all workers; raises `_AtFirst` in all but the first."""
    running = running or Running()
    layout = problem.layout
    if layout.component != "linear":
        raise SettingError(f"component={layout.component!r} is trained in one process")
    if running.device == "cuda":
        peers.use_device()
    shares = share_columns(layout, peers.grid.n_shards)
    fields = shares[peers.grid.shard]

    def make(whole: Layout, steps: StepSettings, objective: Objective, offsets: np.ndarray) -> Any:
        about = (whole, fields, peers, steps, objective, offsets)
        if running.device == "cuda":
            from ..engines.sharded_gpu import ShardedGpuEngine

            engine: Any = ShardedGpuEngine(*about, half=settings.half)
        else:
            engine = ShardedEngine(*about, n_jobs=running.n_jobs)
        engine.disk = ShardedDisk(peers, whole, shares)
        return engine

    _refuse_unlike(peers, "settings", asdict(settings))
    fit = train(problem, settings, replace(running, engine=make))
    table = _whole(peers, layout, shares, fit.table)
    if not peers.is_first:
        raise _AtFirst
    return replace(fit, table=table, state=np.zeros((0, layout.width), np.float32))


def _whole(
    peers: TorchPeers, layout: Layout, shares: Sequence[Sequence[int]], table: np.ndarray
) -> np.ndarray:
    """The table of all shards, at the first worker."""
    shape = (layout.n_rows if peers.is_first else 0, layout.width)
    out = np.zeros(shape, np.float32)
    every = range(layout.n_fields)
    pairs = [list(column_pairs(layout, every, fields)) for fields in shares]

    def place(shard: int, start: int, part: np.ndarray) -> None:
        for rows, ours, theirs in pairs[shard]:
            low, high = max(rows.start, start), min(rows.stop, start + len(part))
            if low < high:
                out[low:high, ours] = part[low - start : high - start, theirs]

    peers.to_first(table, place)
    return out
