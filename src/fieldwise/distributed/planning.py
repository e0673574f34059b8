"""Estimates a run with several workers before it is started: memory, bytes and seconds per step.

A step of one worker with C columns takes

    base + slope C                       a batch's rows: read, grouped, and moved back
    due d C / reg_every                  its share of the penalty, which moves all rows
    hops latency + bytes / bandwidth     the sum of scores, one float per sample and output

and with G groups of workers base and slope are those of B / G rows, and the gradients of the rows
that a group touched are sent to the others. `measured` finds the coefficients on this machine, with
the engine that trains; those of the network are given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..data.shuffle import GROUP
from ..engines import StepSettings
from ..engines._shards import shard_layout
from ..engines.cpu import padded
from ..engines.sharded import ShardedEngine
from ..errors import SettingError
from ..layout import Layout
from ..objective import Objective
from .grid import Grid, share_columns

__all__ = ["Alone", "Machine", "Network", "Plan", "measured", "plan", "plans"]

FLOAT = 4
TABLES = 4  # the table, Adagrad's state, an epoch's mean and the best so far
TRIAL_BYTES = 1 << 28  # table and state to measure with
TRIAL_WIDTHS = (31, 127)  # columns, without the bias
STEPS, ROUNDS = 8, 5
DUE_EVERY = 1000


@dataclass(frozen=True)
class Machine:
    """Seconds of a step of `batch` rows: `base`, plus `slope` per column; of the penalty `due` per
    entry of the table; `distinct` is how many rows of the table a batch touches."""

    base: float
    slope: float
    due: float
    distinct: float
    batch: int
    threads: int


@dataclass(frozen=True)
class Network:
    """Between two workers: seconds until the first byte arrives, and bytes per second after it."""

    latency: float = 50e-6
    bandwidth: float = 10e9 / 8

    def __post_init__(self) -> None:
        if not 0 <= self.latency < math.inf or not 0 < self.bandwidth <= math.inf:
            raise SettingError(
                f"a network of latency {self.latency:g} s and {self.bandwidth:g} bytes/s is "
                "impossible: give a latency of at least 0 and a bandwidth of more than 0"
            )

    def sum_seconds(self, n_bytes: float, n: int) -> float:
        """Seconds to sum an array over n workers: twice around a ring, in n pieces."""
        if n == 1:
            return 0.0
        return 2 * (n - 1) * (self.latency + n_bytes / n / self.bandwidth)

    def share_seconds(self, n_bytes: float, n: int) -> float:
        """Seconds to send what each of n workers has to all others."""
        return (n - 1) * (self.latency + n_bytes / self.bandwidth) if n > 1 else 0.0


@dataclass(frozen=True)
class Plan:
    """The worker with the most columns: its columns, bytes of memory, bytes sent per step, and
    seconds per step."""

    n_workers: int
    n_groups: int
    columns: int
    table_bytes: int
    other_bytes: int
    sent_bytes: float
    work_seconds: float
    penalty_seconds: float
    network_seconds: float
    rows_per_second: float
    times_one: float  # speed relative to one such worker

    @property
    def step_seconds(self) -> float:
        return self.work_seconds + self.penalty_seconds + self.network_seconds

    @property
    def bottleneck(self) -> str:
        parts = {
            "memory traffic of the worker's columns": self.work_seconds,
            "the penalty": self.penalty_seconds,
            "the network": self.network_seconds,
        }
        return max(parts, key=lambda name: parts[name])

    def facts(self) -> dict[str, Any]:
        """All figures as a dict for JSON."""
        return {**asdict(self), "step_seconds": self.step_seconds, "bottleneck": self.bottleneck}


def plan(
    layout: Layout,
    machine: Machine,
    *,
    n_workers: int = 1,
    n_groups: int = 1,
    batch: int = 2048,
    network: Network | None = None,
    n_scores: int | None = None,
    reg_every: int = DUE_EVERY,
) -> Plan:
    """The estimate for one grid of workers."""
    found = _plan(
        layout, machine, Grid(0, n_workers, n_groups), batch, network, n_scores, reg_every
    )
    one = _plan(layout, machine, Grid(0, 1), batch, network, n_scores, reg_every)
    return replace(found, times_one=found.rows_per_second / one.rows_per_second)


def _plan(
    layout: Layout,
    machine: Machine,
    grid: Grid,
    batch: int,
    network: Network | None,
    n_scores: int | None,
    reg_every: int,
) -> Plan:
    network = network or Network()
    K = layout.n_outputs
    shares = share_columns(layout, grid.n_shards)
    columns = max(padded(shard_layout(layout, fields)) for fields in shares)
    d = layout.n_rows + layout.n_fields
    mine = batch / grid.n_groups / machine.batch  # relative to the measured batch
    work = mine * (machine.base + machine.slope * columns)
    penalty = machine.due * d * columns / reg_every
    scores = FLOAT * batch / grid.n_groups * (n_scores or K)
    wire = network.sum_seconds(scores, grid.n_shards)
    touched = FLOAT * columns * machine.distinct * mine if grid.n_groups > 1 else 0.0
    wire += network.share_seconds(touched, grid.n_groups)
    sent = 2 * scores * (grid.n_shards - 1) / grid.n_shards + touched * (grid.n_groups - 1)
    step = work + penalty + wire
    rows = GROUP * FLOAT * (layout.n_slots + 2)
    scratch = 2 * FLOAT * columns * batch // grid.n_groups
    table = TABLES * FLOAT * d * columns
    return Plan(
        *(grid.n_workers, grid.n_groups, columns, table, rows + scratch, sent),
        *(work, penalty, wire, batch / step, 1.0),
    )


def plans(layout: Layout, machine: Machine, n_workers: int, **options: Any) -> list[Plan]:
    """The estimates for every grid of `n_workers`, the fastest first."""
    out = []
    for n_groups in range(1, n_workers + 1):
        if n_workers % n_groups:
            continue
        try:
            found = plan(layout, machine, n_workers=n_workers, n_groups=n_groups, **options)
        except SettingError:  # more workers than fields to share out
            continue
        out.append(found)
    return sorted(out, key=lambda one: -one.rows_per_second)


class Alone:
    """The peers of an engine that has none."""

    row_group, n_row_groups = 0, 1

    def add_scores(self, scores: np.ndarray) -> Callable[[], None]:
        return lambda: None

    def add_all(self, array: np.ndarray) -> None:
        pass

    add_groups = add_all

    def merge(self, rows: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return rows, gradients


def measured(
    codes: np.ndarray,
    sizes: Sequence[int],
    *,
    values: np.ndarray | None = None,
    slots: Sequence[int] = (),
    batch: int = 2048,
    threads: int | None = None,
) -> Machine:
    """Measure this machine on rows like these, codes and values (n, slots), with `threads` per
    worker. If the table is too large for a trial, all fields are scaled down and codes wrap
    around."""
    room = TRIAL_BYTES // (2 * FLOAT * (max(TRIAL_WIDTHS) + 1))
    scale = min(1.0, room / max(sum(sizes), 1))
    sizes = tuple(max(1, int(d * scale)) for d in sizes)
    need = STEPS * batch
    codes = np.resize(codes, (need, codes.shape[1]))
    codes %= np.repeat(np.array(sizes, np.int32), slots or 1)
    if values is not None:
        values = np.resize(values, codes.shape)
    target = (np.arange(need) % 2).astype(np.float32)[:, None]
    m = len(sizes)
    seconds: list[float] = []
    due = 0.0
    for width in TRIAL_WIDTHS:
        ranks = tuple(len(part) for part in np.array_split(np.arange(width), m))
        layout = Layout(sizes, ranks, slots=tuple(slots))
        steps = StepSettings(batch_size=batch, penalty=0.0)
        about = (Objective(), np.zeros(1))
        engine = ShardedEngine(layout, range(m), Alone(), steps, *about, n_jobs=threads)
        seconds.append(_seconds(engine, codes, values, target) / STEPS)
        engine.settings = replace(steps, penalty=1e-5, reg_every=1)
        one = slice(0, batch)
        taken = _seconds(engine, codes[one], None if values is None else values[one], target[one])
        due = max(0.0, taken - seconds[-1]) / (layout.n_rows * (width + 1))
        used = engine.n_threads
    slope = max(0.0, (seconds[1] - seconds[0]) / (TRIAL_WIDTHS[1] - TRIAL_WIDTHS[0]))
    base = max(0.0, seconds[0] - slope * (TRIAL_WIDTHS[0] + 1))
    distinct = sum(len(np.unique(column)) for column in codes[:batch].T)
    return Machine(base, slope, due, float(distinct), batch, used)


def _seconds(
    engine: ShardedEngine, codes: np.ndarray, values: np.ndarray | None, target: np.ndarray
) -> float:
    """The fastest of some rounds, as other processes can only make one slower."""
    taken = []
    for _ in range(1 + ROUNDS):  # the first compiles, or loads what was compiled
        begun = time.perf_counter()
        engine.run(codes, values, target, None)
        taken.append(time.perf_counter() - begun)
    return min(taken)
