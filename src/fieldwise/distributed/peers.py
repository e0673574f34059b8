"""The workers of a run, over torch.distributed: what they add up, and what they tell each other."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from ..errors import FieldwiseError, MissingExtra, SettingError, TrainingError
from .grid import Grid

__all__ = ["TorchPeers", "joined", "world"]

CONNECT_SECONDS = 120.0  # until every worker must have come
SILENT_SECONDS = 300.0  # without a word from another, after which it is taken for lost
HEARTBEAT_SECONDS = 2.0
T = TypeVar("T")


def world() -> tuple[int, int] | None:
    """This process's rank and how many there are, as a launcher says it; None: it is alone."""
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return rank, size


@contextmanager
def joined(n_groups: int = 1, connect: float = CONNECT_SECONDS) -> Iterator[TorchPeers]:
    """This process among the others that a launcher started, or those of a group it is in."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise MissingExtra("torch", "distributed") from error
    found = world()
    if found is None:
        raise SettingError(
            "no launcher has started workers; run: torchrun --nproc-per-node 2 -m fieldwise train"
        )
    rank, size = found
    grid = Grid(rank, size, n_groups)
    is_mine = not dist.is_initialized()
    try:
        try:
            if is_mine:
                _meet(rank, size, connect)
            peers = TorchPeers(grid)
        except (RuntimeError, ValueError, OSError) as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            raise TrainingError(
                f"worker {rank} of {size} did not meet the others at {where} within "
                f"{connect:g} s: start all {size}, and let them reach that address"
            ) from error
        yield peers
    finally:
        if is_mine and dist.is_initialized():
            dist.destroy_process_group()


def _meet(rank: int, size: int, connect: float) -> None:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(seconds=connect)
    store, _, _ = next(rendezvous("env://", timeout=limit))
    # Workers that are started again would find what the dead ones have left there.
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"fieldwise-{again}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)


class TorchPeers:
    """See `engines.sharded.Peers`. Its other methods are for all workers at once, too."""

    def __init__(self, grid: Grid, silent: float = SILENT_SECONDS) -> None:
        import torch.distributed as dist

        self.grid = grid
        self.row_group, self.n_row_groups = grid.group, grid.n_groups
        limit = timedelta(seconds=silent)
        self._everyone = dist.new_group(timeout=limit)
        # Every worker makes all groups, in the same order.
        rows = [dist.new_group(grid.same_rows(g), limit) for g in range(grid.n_groups)]
        columns = [dist.new_group(grid.same_columns(k), limit) for k in range(grid.n_shards)]
        self._same_rows, self._same_columns = rows[grid.group], columns[grid.shard]
        self._on_device, self.is_recordable = self._same_rows, False

    def use_device(self) -> None:
        """A GPU for every worker of a machine; where each has its own, NCCL sums the scores."""
        import torch
        import torch.distributed as dist

        n_devices, mine = torch.cuda.device_count(), None
        if n_devices:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % n_devices)
            mine = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        every = self.gathered(mine if dist.is_nccl_available() else None)
        alone = None not in every and len(set(every)) == len(every)
        if alone and not self.is_recordable:
            ranks = [self.grid.same_rows(g) for g in range(self.grid.n_groups)]
            made = [dist.new_group(mine, backend="nccl") for mine in ranks]
            self._on_device, self.is_recordable = made[self.grid.group], True

    @property
    def is_first(self) -> bool:
        return self.grid.rank == 0

    @contextmanager
    def _heard(self) -> Iterator[Any]:
        """Others that are gone or silent are an error that says what is left to do."""
        import torch.distributed as dist

        try:
            yield dist
        except RuntimeError as error:
            raise TrainingError(
                f"worker {self.grid.rank} of {self.grid.n_workers} lost another one. What was "
                "saved last is intact: start the run again with --resume"
            ) from error

    def _add(self, array: Any, group: Any, n: int) -> Callable[[], None]:
        """The sum of an array of NumPy's, or of a tensor where it is; done once called."""
        if n == 1:
            return lambda: None
        import torch

        if torch.is_tensor(array):
            with self._heard() as dist:
                dist.all_reduce(array, group=self._on_device if array.is_cuda else group)
            return lambda: None
        whole = np.ascontiguousarray(array)
        with self._heard() as dist:
            begun = dist.all_reduce(torch.from_numpy(whole), group=group, async_op=True)

        def wait() -> None:
            with self._heard():
                begun.wait()
            if whole is not array:
                array[...] = whole

        return wait

    def add_scores(self, scores: Any) -> Callable[[], None]:
        return self._add(scores, self._same_rows, self.grid.n_shards)

    def add_all(self, array: np.ndarray) -> None:
        self._add(array, self._everyone, self.grid.n_workers)()

    def add_groups(self, array: np.ndarray) -> None:
        self._add(array, self._same_columns, self.grid.n_groups)()

    def merge(self, rows: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        import torch

        n = self.grid.n_groups
        if n == 1:
            return rows, gradients
        counts = np.zeros(n, np.int64)
        counts[self.grid.group] = len(rows)
        self.add_groups(counts)
        most = int(counts.max())
        ids, g = np.zeros(most, np.int32), np.zeros((most, gradients.shape[1]), np.float32)
        ids[: len(rows)], g[: len(rows)] = rows, gradients
        all_ids = [torch.zeros(most, dtype=torch.int32) for _ in range(n)]
        all_g = [torch.zeros(g.shape) for _ in range(n)]
        with self._heard() as dist:
            dist.all_gather(all_ids, torch.from_numpy(ids), group=self._same_columns)
            dist.all_gather(all_g, torch.from_numpy(g), group=self._same_columns)
        parts = [part.numpy()[:k] for part, k in zip(all_ids, counts, strict=True)]
        distinct, places = np.unique(np.concatenate(parts), return_inverse=True)
        out, at = np.zeros((len(distinct), g.shape[1]), np.float32), 0
        for part, found in zip(parts, all_g, strict=True):  # a row is in each of them once at most
            out[places[at : at + len(part)]] += found.numpy()[: len(part)]
            at += len(part)
        return distinct.astype(rows.dtype), out

    def told(self, thing: Any) -> Any:
        """What the first worker has, whatever the others gave."""
        found = [thing]
        with self._heard() as dist:
            dist.broadcast_object_list(found, src=0, group=self._everyone)
        return found[0]

    def gathered(self, thing: Any) -> list[Any]:
        """What each worker has."""
        out: list[Any] = [None] * self.grid.n_workers
        with self._heard() as dist:
            dist.all_gather_object(out, thing, group=self._everyone)
        return out

    def at_first(self, work: Callable[[], T]) -> T:
        """Work of the first worker, for which all others wait however long it takes; its result, or
        its error, is everyone's."""
        found: Any = None
        mine: FieldwiseError | None = None
        if self.is_first:
            with self._beating():
                try:
                    found = (work(), None)
                except FieldwiseError as error:
                    mine, found = error, (None, str(error))
        else:
            while self._beat(0):
                pass
        out, said = self.told(found)
        if said is not None:
            raise mine or FieldwiseError(said)
        return out

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Tells the others every so often that there is more to wait for, and at the end not."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(HEARTBEAT_SECONDS):
                self._beat(1)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._beat(0)

    def _beat(self, more: int) -> bool:
        import torch

        said = torch.tensor([more])
        with self._heard() as dist:
            dist.broadcast(said, src=0, group=self._everyone)
        return bool(said.item())

    def to_first(self, array: np.ndarray, place: Callable[[int, int, np.ndarray], None]) -> None:
        """Bring the rows of every shard's array to the first worker, some at a time: there `place`
        is called with the shard, the first row and the rows."""
        import torch

        step = max(1, (1 << 22) // max(array.shape[1], 1))
        widths = self.gathered(array.shape[1])
        for shard in range(self.grid.n_shards):
            for start in range(0, len(array), step):
                n = min(step, len(array) - start)
                if self.is_first and shard == 0:
                    place(0, start, array[start : start + n])
                elif self.is_first:
                    part = torch.empty(n, widths[shard])
                    with self._heard() as dist:
                        dist.recv(part, src=shard)
                    place(shard, start, part.numpy())
                elif self.grid.rank == shard:
                    mine = torch.from_numpy(np.ascontiguousarray(array[start : start + n]))
                    with self._heard() as dist:
                        dist.send(mine, dst=0)
