"""Training by several workers, started by a launcher: each runs the same loop over its own columns;
the first one also encodes the table before, and writes the model after."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from .. import __version__
from ..callbacks import heard, tell
from ..data.remote import is_remote
from ..data.store import Store
from ..engines import StepSettings, engine_for
from ..engines.sharded import ShardedEngine
from ..errors import FieldwiseError, SettingError
from ..files import array_on_disk, disk_errors
from ..fitting import (
    fit_store,
    is_saved,
    plainly,
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
from .meeting import CONNECT_SECONDS, joined
from .peers import SILENT_SECONDS, TorchPeers
from .shards import ShardedDisk, column_pairs

__all__ = ["train_sharded", "train_table", "work_folder"]


SEEN_SECONDS = 10.0  # until a network file system must show what another host made


class _AtFirst(Exception):
    """Ends the work of all but the first worker, which has the model."""


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
    """Like `fitting.train_table`, on all workers of a run; only the first one returns the model.

    All of them must see the same folders, and connect within `connect` seconds. A worker that is
    silent for `silent` seconds counts as lost, and the run ends. When a launcher restarts a run
    after a worker died, it continues from the last checkpoint.
    """
    out, running = Path(out), running or Running()
    with joined(n_groups, connect, silent) as peers:
        peers.refuse_unlike("versions", _versions())
        peers.refuse_unlike("data", str(data))
        peers.refuse_unlike("settings", _settings(running, overwrite, reading, fitting))
        own = _of_worker(running, peers)

        def prepare() -> tuple[str, dict[str, Any]] | None:
            if is_saved(out, own, overwrite=overwrite):
                return None
            store, rest = prepared_store(data, out, reading, overwrite, own, fitting)
            return str(data if is_remote(data) else store.path), rest

        prepared = peers.at_first(prepare)
        if prepared is None:
            return FieldwiseModel.load(out) if peers.is_first else None
        path, fitting = prepared
        finish = partial(_finished, peers, out, overwrite)
        with work_of(out) if peers.is_first else nullcontext():
            _see_the_same(work_folder(out), peers)
            store = _opened(path, peers)
            own = replace(own, checkpoint=work_folder(out) / "checkpoint")
            with heard(running.callbacks if peers.is_first else ()) as close:
                trainer = partial(train_sharded, peers)
                try:
                    model = fit_store(store, running=own, trainer=trainer, finish=finish, **fitting)
                except _AtFirst:
                    return None
        close(model, out)
        return model


def _finished(
    peers: TorchPeers, out: Path, overwrite: bool, make: Callable[..., FieldwiseModel]
) -> FieldwiseModel:
    """Make and save the model at the first worker while the others wait; raises at the others."""
    found: list[FieldwiseModel] = []

    def save() -> None:
        found.append(make(room=partial(array_on_disk, work_folder(out) / "rows.bin")))
        save_result(found[0], out, overwrite=overwrite)

    peers.at_first(save)
    if not found:
        raise _AtFirst
    return found[0]


def _settings(
    running: Running, overwrite: bool, reading: Mapping[str, Any] | None, fitting: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings that must be the same for all workers."""
    train = asdict(fitting.get("settings") or TrainSettings())
    more = {k: v for k, v in fitting.items() if k != "settings"}
    about = {"device": running.device, "resume": running.resume, "overwrite": overwrite}
    found: dict[str, Any] = json.loads(plainly({**train, **more, **(reading or {}), **about}))
    return found


def _of_worker(running: Running, peers: TorchPeers) -> Running:
    """A worker's `Running`: its share of threads, output at the first only, a stop all agree on."""
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    jobs = running.n_jobs or max(1, (os.cpu_count() or 1) // beside)
    # Hosts of a run may have different counts of torchrun's restarts.
    again = max(peers.gathered(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))) > 0
    told = running.callbacks if peers.is_first else ()

    def agreed(record: dict[str, Any]) -> bool:
        return bool(peers.told(tell(told, record)))

    return replace(
        running,
        n_jobs=jobs,
        callbacks=(agreed,),
        show=running.show if peers.is_first else False,
        resume=running.resume or again,
        keeps_best=False,  # a Ctrl-C reaches workers at different steps
    )


def _versions() -> dict[str, str]:
    import torch

    return {
        "fieldwise": __version__,
        "numpy": np.__version__,
        "torch": torch.__version__,
        "byteorder": sys.byteorder,
    }


def _see_the_same(work: Path, peers: TorchPeers) -> None:
    """Raise if a worker's folder is not the first one's: its checkpoints would be lost."""
    mark = work / f"seen-{peers.told(uuid4().hex)}"

    def make() -> None:
        with disk_errors(mark):
            work.mkdir(parents=True, exist_ok=True)
            mark.touch()

    def see() -> None:
        until = time.monotonic() + SEEN_SECONDS
        while not mark.exists():
            if time.monotonic() < until:
                time.sleep(0.1)
                continue
            raise SettingError(
                f"worker {peers.grid.rank} does not see {mark}, which worker 0 has made; the "
                "model's folder must be on a disk that all workers share"
            )

    peers.at_first(make)
    peers.each(see)
    if peers.is_first:
        mark.unlink()


def _opened(path: str, peers: TorchPeers) -> Store:
    """Open the store at every worker; raises if one cannot, or has another one."""
    found: list[Store] = []

    def see() -> None:
        try:
            found.append(Store(path))
        except FieldwiseError as error:
            raise SettingError(
                f"worker {peers.grid.rank} does not see the encoded table: {error}"
            ) from error

    peers.each(see)
    peers.refuse_unlike("data", found[0].header)
    return found[0]


def train_sharded(
    peers: TorchPeers, problem: Problem, settings: TrainSettings, running: Running | None = None
) -> Fit:
    """Like `train.train`, on all workers; only the first one's result has the table."""
    running = running or Running()
    layout = problem.layout
    if layout.component != "linear":
        raise SettingError(f"component={layout.component!r} is trained in one process")
    kind: Any = partial(ShardedEngine, n_jobs=running.n_jobs)
    if engine_for(running.device, layout, n_rows=0) == "gpu":
        from ..engines.sharded_gpu import ShardedGpuEngine

        kind = ShardedGpuEngine
        peers.use_device()
    shares = share_columns(layout, peers.grid.n_shards)
    fields = shares[peers.grid.shard]

    def make(whole: Layout, steps: StepSettings, objective: Objective, offsets: np.ndarray) -> Any:
        about = (whole, fields, peers, steps, objective, offsets)
        engine = kind(*about, half=settings.half)
        engine.disk = ShardedDisk(peers, whole, shares)
        return engine

    fit = train(problem, settings, replace(running, engine=make))
    table = _whole(peers, layout, shares, fit.table, running.checkpoint)
    return replace(fit, table=table, state=np.zeros((0, layout.width), np.float32))


def _whole(
    peers: TorchPeers,
    layout: Layout,
    shares: Sequence[Sequence[int]],
    table: np.ndarray,
    folder: Path | None,
) -> np.ndarray:
    """The whole table at the first worker, assembled from all shards (empty at the others): on disk
    if there is a folder, because it may be larger than any worker's memory."""
    out = np.zeros((0, layout.width), np.float32)
    if peers.is_first:
        room = np.zeros if folder is None else partial(array_on_disk, folder.with_name("table.bin"))
        out = room((layout.n_rows, layout.width), dtype=np.float32)
    every = range(layout.n_fields)
    pairs = [list(column_pairs(layout, every, fields)) for fields in shares]

    def place(shard: int, start: int, part: np.ndarray) -> None:
        for rows, ours, theirs in pairs[shard]:
            low, high = max(rows.start, start), min(rows.stop, start + len(part))
            if low < high:
                out[low:high, ours] = part[low - start : high - start, theirs]

    peers.to_first(table, place)
    return out
