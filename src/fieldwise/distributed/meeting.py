"""How the workers of a run find each other, whatever launcher started them."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from ..errors import FieldwiseError, MissingExtra, SettingError
from .grid import Grid
from .peers import SILENT_SECONDS, LostWorker, TorchPeers

__all__ = ["CONNECT_SECONDS", "joined", "world"]

CONNECT_SECONDS = 120.0  # within which every worker must connect
LOOK_SECONDS = 0.05
INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_STORES: dict[tuple[str, int], Any] = {}  # by address, kept for later runs of this process


def world() -> tuple[int, int] | None:
    """This process's rank and the number of processes, set by a launcher; None if there is none."""
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
    """Connect to the other workers, started by a launcher or of an existing process group."""
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
    unset = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if is_mine and unset:
        raise SettingError(
            f"RANK={rank} and WORLD_SIZE={size} are set, as for one of several workers, but "
            f"{unset[0]} is not: set it too, or unset them to train in one process"
        )
    absent: list[int] = []
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    try:
        try:
            _choose_interface()
            if is_mine:
                _meet(rank, size, connect, absent)
            peers = TorchPeers(grid, silent)
        except FieldwiseError:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            others = f"worker {', '.join(map(str, absent))}" if absent else "the others"
            raise LostWorker(
                f"worker {rank} of {size} did not meet {others} at {where} within {connect:g} s: "
                f"start all {size}, and let them reach that address and each other (on a host with "
                "several networks, set GLOO_SOCKET_IFNAME to the one between them)"
            ) from error
        yield peers
    finally:
        if interface is None:
            os.environ.pop("GLOO_SOCKET_IFNAME", None)
        if is_mine and dist.is_initialized():
            dist.destroy_process_group()


def _meet(rank: int, size: int, connect: float, absent: list[int]) -> None:
    """Wait for all workers, and connect to each; if that fails, `absent` has those missing."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    limit = timedelta(seconds=connect)
    is_hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if where not in _STORES:
        _STORES[where] = dist.TCPStore(  # type: ignore[attr-defined]  # it is there
            *where, is_master=rank == 0 and not is_hosted, timeout=limit, wait_for_workers=False
        )
    meet = _invite if rank == 0 else _answer
    name = meet(_STORES[where], rank, size, time.monotonic() + connect, absent)
    # gloo tries to connect five times, each for as long as its timeout.
    dist.init_process_group(
        *("gloo", None, limit / 5, size, rank), store=PrefixStore(name, _STORES[where])
    )


# torch's store outlives workers that are restarted, and keeps what they left there; launchers of
# several hosts may count restarts differently. So the first worker chooses a random name for the
# meeting, and sends it to each worker that asks for it with a random word of its own.


def _invite(store: Any, _: int, size: int, until: float, absent: list[int]) -> str:
    name, missing = uuid4().hex, set(range(1, size))
    while missing:
        for k in missing:
            if store.check([f"asks-{k}"]):
                store.set(store.get(f"asks-{k}").decode(), name)
        missing = {k for k in missing if not store.check([f"{name}-{k}"])}
        if missing and time.monotonic() > until:
            absent += sorted(missing)
            raise RuntimeError("not all have come")
        time.sleep(LOOK_SECONDS)
    store.set(f"{name}-all", "")
    return name


def _answer(store: Any, rank: int, size: int, until: float, absent: list[int]) -> str:
    word = uuid4().hex
    store.set(f"asks-{rank}", word)
    absent.append(0)
    store.wait([word], _left(until))
    name = str(store.get(word).decode())
    absent.clear()
    store.set(f"{name}-{rank}", "")
    try:
        store.wait([f"{name}-all"], _left(until))
    except RuntimeError:
        absent += [k for k in range(1, size) if not store.check([f"{name}-{k}"])]
        raise
    return name


def _left(until: float) -> timedelta:
    return timedelta(seconds=max(until - time.monotonic(), LOOK_SECONDS))


def _choose_interface() -> None:
    """Make gloo use the network interface that leads to the first worker. By default it takes the
    address of this host's name, which on many machines is a loopback address."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((os.environ["MASTER_ADDR"], 1))  # sends nothing
            mine = socket.inet_aton(probe.getsockname()[0])
            for _, name in socket.if_nameindex():
                with suppress(OSError):  # an interface without an address
                    asked = struct.pack("256s", name.encode())
                    if fcntl.ioctl(probe.fileno(), INTERFACE_ADDRESS, asked)[20:24] == mine:
                        os.environ["GLOO_SOCKET_IFNAME"] = name
                        return
    except (ImportError, KeyError, OSError):  # not Linux, or only IPv6: gloo chooses
        return
