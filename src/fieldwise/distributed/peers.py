"""Communication between the workers of a run, over torch.distributed: sums and messages."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from ..errors import FieldwiseError, SettingError, TrainingError
from .grid import Grid

__all__ = ["SILENT_SECONDS", "LostWorker", "TorchPeers"]

SILENT_SECONDS = 300.0  # of silence, after which a worker counts as lost
HEARTBEAT_SECONDS = 2.0
PIECE = 1 << 22  # floats that are sent at a time
T = TypeVar("T")


class LostWorker(TrainingError):
    """Another worker is gone or silent; restarting all of them may help."""


class TorchPeers:
    """See `engines._shards.Peers`. All workers must call its other methods together, too."""

    def __init__(self, grid: Grid, silent: float = SILENT_SECONDS) -> None:
        import torch.distributed as dist

        self.grid = grid
        self.row_group, self.n_row_groups = grid.group, grid.n_groups
        self._limit = timedelta(seconds=silent)
        self._everyone = dist.new_group(timeout=self._limit)
        self.refuse_unlike("groups", grid.n_groups)
        self._groups = self._made("gloo")
        self._on_device = self._groups
        self.is_recordable = False

    def _made(self, backend: str) -> dict[str, Any]:
        """The groups of this worker: "rows" share its rows, with other columns; "columns" share its
        columns, with other rows. Every worker makes all groups, in the same order."""
        import torch.distributed as dist

        grid = self.grid
        rows = [
            dist.new_group(grid.same_rows(g), self._limit, backend) for g in range(grid.n_groups)
        ]
        columns = [
            dist.new_group(grid.same_columns(k), self._limit, backend) for k in range(grid.n_shards)
        ]
        return {"rows": rows[grid.group], "columns": columns[grid.shard]}

    def use_device(self) -> None:
        """Choose a GPU for this worker; if each worker has its own, sums run over NCCL."""
        import torch
        import torch.distributed as dist

        n_devices, mine = torch.cuda.device_count(), None
        if n_devices:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % n_devices)
            mine = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        every = self.gathered(mine if dist.is_nccl_available() else None)
        alone = None not in every and len(set(every)) == len(every)
        if alone and self._on_device is self._groups:
            self._on_device = self._made("nccl")
            # How many rows groups exchange varies by step, which a graph cannot record.
            self.is_recordable = self.n_row_groups == 1

    @property
    def is_first(self) -> bool:
        return self.grid.rank == 0

    @contextmanager
    def _heard(self) -> Iterator[Any]:
        """Turn torch's error about a worker that is gone or silent into a LostWorker."""
        import torch.distributed as dist

        try:
            yield dist
        except RuntimeError as error:
            raise LostWorker(
                f"worker {self.grid.rank} of {self.grid.n_workers} lost another one. The last "
                "checkpoint is intact: start the run again with --resume"
            ) from error

    def _add(self, array: Any, over: str, n: int) -> Callable[[], None]:
        """Begin to sum an array in place, NumPy's or a tensor on its device, over n workers; call
        the result to wait for it."""
        if n == 1:
            return lambda: None
        import torch

        if torch.is_tensor(array):
            with self._heard() as dist:
                group = (self._on_device if array.is_cuda else self._groups)[over]
                dist.all_reduce(array, group=group)
            return lambda: None
        whole = np.ascontiguousarray(array)
        with self._heard() as dist:
            group = self._everyone if over == "all" else self._groups[over]
            begun = dist.all_reduce(torch.from_numpy(whole), group=group, async_op=True)

        def wait() -> None:
            with self._heard():
                begun.wait()
            if whole is not array:
                array[...] = whole

        return wait

    def add_scores(self, scores: Any) -> Callable[[], None]:
        return self._add(scores, "rows", self.grid.n_shards)

    def add_all(self, array: np.ndarray) -> None:
        self._add(array, "all", self.grid.n_workers)()

    def add_groups(self, array: Any) -> None:
        self._add(array, "columns", self.grid.n_groups)()

    def merge(self, rows: Any, gradients: Any) -> tuple[Any, Any]:
        import torch

        n = self.grid.n_groups
        if n == 1:
            return rows, gradients
        counts = np.zeros(n, np.int64)
        counts[self.grid.group] = len(rows)
        self.add_groups(counts)
        most = int(counts.max())
        # gloo only takes host memory
        is_device = self._on_device is not self._groups and not isinstance(rows, np.ndarray)
        where = gradients.device if is_device else "cpu"
        group = (self._on_device if is_device else self._groups)["columns"]
        ids = torch.zeros(most, dtype=torch.int32, device=where)
        g = torch.zeros((most, gradients.shape[1]), device=where)
        ids[: len(rows)], g[: len(rows)] = torch.as_tensor(rows), torch.as_tensor(gradients)
        all_ids, all_g = ([torch.zeros_like(x) for _ in range(n)] for x in (ids, g))
        with self._heard() as dist:
            dist.all_gather(all_ids, ids, group=group)
            dist.all_gather(all_g, g, group=group)
        parts = [part[:k] for part, k in zip(all_ids, counts.tolist(), strict=True)]
        distinct, places = torch.unique(torch.cat(parts), return_inverse=True)
        out, at = torch.zeros((len(distinct), g.shape[1]), device=where), 0
        for part, found in zip(parts, all_g, strict=True):  # each row at most once in a part
            out[places[at : at + len(part)]] += found[: len(part)]
            at += len(part)
        if isinstance(rows, np.ndarray):
            return distinct.numpy().astype(rows.dtype), out.numpy()
        return distinct.to(rows.device), out.to(rows.device)

    def told(self, thing: Any) -> Any:
        """The first worker's `thing`, at every worker."""
        found = [thing]
        with self._heard() as dist:
            dist.broadcast_object_list(found, src=0, group=self._everyone)
        return found[0]

    def gathered(self, thing: Any) -> list[Any]:
        """Every worker's `thing`, in order of ranks, at every worker."""
        out: list[Any] = [None] * self.grid.n_workers
        with self._heard() as dist:
            dist.all_gather_object(out, thing, group=self._everyone)
        return out

    def refuse_unlike(self, what: str, mine: Any) -> None:
        """Raise, naming the worker, unless all have the same as the first."""
        every = self.gathered(mine)
        for rank, theirs in enumerate(every):
            if theirs != every[0]:
                raise SettingError(
                    f"worker {rank} has other {what} than worker 0: {_told_apart(theirs, every[0])}"
                )

    def each(self, work: Callable[[], T]) -> list[T]:
        """Run `work` at every worker; returns all results. Each waits for the slowest, however long
        it takes, and an error at one is raised at all."""
        found: Any = None
        mine: FieldwiseError | None = None
        with self._waited_for():
            try:
                found = work()
            except FieldwiseError as error:
                mine = error
        every = self.gathered((found, mine and str(mine)))
        for _, said in every:
            if said is not None:
                raise mine or FieldwiseError(said)
        return [found for found, _ in every]

    def at_first(self, work: Callable[[], T]) -> T:
        """Run `work` at the first worker while the others wait; returns its result at all."""
        nothing: Any = None
        return self.each(work if self.is_first else lambda: nothing)[0]

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Tell the others regularly that the work inside goes on; at its end wait for theirs."""
        done, left = threading.Event(), threading.Event()
        problem: list[FieldwiseError] = []

        def beat() -> None:
            try:
                while not left.is_set() and not self._least(int(done.is_set())):
                    done.wait(HEARTBEAT_SECONDS)
            except FieldwiseError as error:
                problem.append(error)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            left.set()
            raise
        finally:
            done.set()
            thread.join()
        if problem:
            raise problem[0]

    def _least(self, mine: int) -> int:
        """The minimum of `mine` over all workers."""
        import torch

        said = torch.tensor([mine])
        with self._heard() as dist:
            dist.all_reduce(said, dist.ReduceOp.MIN, group=self._everyone)
        return int(said.item())

    def to_first(self, array: np.ndarray, place: Callable[[int, int, np.ndarray], None]) -> None:
        """Send the rows of every shard's array to the first worker, in pieces: there `place` is
        called with the shard, the first row and the rows."""
        import torch

        widths = self.gathered(array.shape[1])
        step = max(1, PIECE // max(*widths, 1))
        for start in range(0, len(array), step):
            mine = array[start : start + step]
            for shard in range(self.grid.n_shards):
                self._least(1)  # so that those who wait their turn are not timed out
                if self.is_first and shard == 0:
                    place(0, start, mine)
                elif self.is_first:
                    part = torch.empty(len(mine), widths[shard])
                    with self._heard() as dist:
                        dist.recv(part, src=shard, group=self._everyone)
                    place(shard, start, part.numpy())
                elif self.grid.rank == shard:
                    whole = torch.from_numpy(np.ascontiguousarray(mine))
                    with self._heard() as dist:
                        dist.send(whole, dst=0, group=self._everyone)


def _told_apart(theirs: Any, first: Any) -> str:
    if isinstance(theirs, dict) and isinstance(first, dict):
        for name in {**first, **theirs}:
            if theirs.get(name) != first.get(name):
                return f"{name} is {theirs.get(name)!r}, not {first.get(name)!r}"[:300]
    return f"{theirs!r}, not {first!r}"[:300]
