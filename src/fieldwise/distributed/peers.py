"""The workers of a run, over torch.distributed: what they add up, and what they tell each other."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np

from ..errors import FieldwiseError, MissingExtra, SettingError, TrainingError
from .grid import Grid

__all__ = ["TorchPeers", "joined", "world"]

CONNECT_SECONDS = 120.0  # until every worker must have come
SILENT_SECONDS = 300.0  # without a word from another, after which it is taken for lost
HEARTBEAT_SECONDS = 2.0
INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
T = TypeVar("T")
# Where this process has met others, and how many times: one run may follow another.
_STORES: dict[tuple[str, int], Any] = {}
_MEETINGS: Counter[tuple[str, int]] = Counter()


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
def joined(
    n_groups: int = 1, connect: float = CONNECT_SECONDS, silent: float = SILENT_SECONDS
) -> Iterator[TorchPeers]:
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
    absent: list[int] = []
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    try:
        try:
            _choose_interface()
            if is_mine:
                _meet(rank, size, connect, absent)
            peers = TorchPeers(grid, silent)
        except (RuntimeError, KeyError, ValueError, OSError) as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            others = f"worker {', '.join(map(str, absent))}" if absent else "the others"
            raise TrainingError(
                f"worker {rank} of {size} did not meet {others} at {where} within {connect:g} s: "
                f"start all {size}, and let them reach that address and each other (of a host with "
                "several networks, GLOO_SOCKET_IFNAME names the one between them)"
            ) from error
        yield peers
    finally:
        if interface is None:
            os.environ.pop("GLOO_SOCKET_IFNAME", None)
        if is_mine and dist.is_initialized():
            dist.destroy_process_group()


def _meet(rank: int, size: int, connect: float, absent: list[int]) -> None:
    """Wait for all workers, and connect to each; who has not come is `absent` where that fails."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    limit = timedelta(seconds=connect)
    is_hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if where not in _STORES:
        _STORES[where] = dist.TCPStore(  # type: ignore[attr-defined]  # it is there
            *where, is_master=rank == 0 and not is_hosted, timeout=limit, wait_for_workers=False
        )
    # Later runs, and workers that are started again, would find what the earlier have left there.
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"fieldwise-{again}-{_MEETINGS[where]}", _STORES[where])
    store.set(f"here-{rank}", "")
    try:
        store.wait([f"here-{k}" for k in range(size)], limit)
    except RuntimeError:
        absent += [k for k in range(size) if not store.check([f"here-{k}"])]
        raise
    # gloo tries to connect five times for as long as it is given.
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit / 5)
    _MEETINGS[where] += 1


def _choose_interface() -> None:
    """Let gloo use the network interface by which the first worker is reached. By itself it takes
    the address of this host's name, which on many machines leads back to the machine itself."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((os.environ["MASTER_ADDR"], 1))  # sends nothing
            mine = socket.inet_aton(probe.getsockname()[0])
            for _, name in socket.if_nameindex():
                with suppress(OSError):  # one without an address
                    asked = struct.pack("256s", name.encode())
                    if fcntl.ioctl(probe.fileno(), INTERFACE_ADDRESS, asked)[20:24] == mine:
                        os.environ["GLOO_SOCKET_IFNAME"] = name
                        return
    except (ImportError, KeyError, OSError):  # not Linux, or IPv6 alone: gloo's own choice
        return


class TorchPeers:
    """See `engines.sharded.Peers`. Its other methods are for all workers at once, too."""

    def __init__(self, grid: Grid, silent: float = SILENT_SECONDS) -> None:
        import torch.distributed as dist

        self.grid = grid
        self.row_group, self.n_row_groups = grid.group, grid.n_groups
        self._limit = timedelta(seconds=silent)
        self._everyone = dist.new_group(timeout=self._limit)
        self._groups = self._made("gloo")
        self._on_device = self._groups
        self.is_recordable = False

    def _made(self, backend: str) -> dict[str, Any]:
        """Those who hold other columns of the same rows, and other rows of the same columns. Every
        worker makes all groups, in the same order."""
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
        """A GPU for every worker of a machine; where each has its own, NCCL sums for them."""
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
            # How many rows groups exchange is known on the way alone: no graph can hold that.
            self.is_recordable = self.n_row_groups == 1

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

    def _add(self, array: Any, over: str, n: int) -> Callable[[], None]:
        """The sum of an array of NumPy's, or of a tensor where it is; done once called."""
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
        # gloo takes memory of the host alone
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
        for part, found in zip(parts, all_g, strict=True):  # a row is in each of them once at most
            out[places[at : at + len(part)]] += found[: len(part)]
            at += len(part)
        if isinstance(rows, np.ndarray):
            return distinct.numpy().astype(rows.dtype), out.numpy()
        return distinct.to(rows.device), out.to(rows.device)

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
