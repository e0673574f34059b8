"""The CPU engine over some of the columns: scores are summed over all engines.

The engine that has a field's columns has its biases too, so that after the sum of scores everything
is local: gradients, Adagrad's state, the penalty and the bounds. Groups of engines, each with all
columns, may also share the rows of a batch; then the gradients of the rows that the groups touched
are summed as well. Both give what one engine gives, up to the order in which floats are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..layout import Layout
from ..objective import Objective
from . import StepSettings, _kernels
from ._numba import pool
from ._shards import Peers, held_columns, shard_layout, starting_columns
from .cpu import CpuEngine, _part, score

__all__ = ["ShardedEngine"]


class ShardedEngine(CpuEngine):
    """See `Engine`; `layout` is of the whole table, `fields` are those whose columns it has."""

    def __init__(
        self,
        layout: Layout,
        fields: Sequence[int],
        peers: Peers,
        settings: StepSettings,
        objective: Objective,
        offsets: np.ndarray,
        n_jobs: int | None = None,
        *,
        half: bool = False,
    ) -> None:
        about = (shard_layout(layout, fields), settings, objective, offsets)
        super().__init__(*about, n_jobs, half=half)
        self.whole, self.peers = layout, peers
        self.biased[:] = False
        self.biased[list(fields)] = True
        self.disk: Any = None  # reads and writes its checkpoints
        self._weights, self._n_runs = np.zeros(1), 0

    def initialise(self, seed: int, scale: float) -> None:
        """Set its columns to those of the whole initial table."""
        for start, part in starting_columns(self.whole, self.columns, seed, scale):
            self.table[start : start + len(part)] = part

    @property
    def columns(self) -> np.ndarray:
        return held_columns(self.whole, np.flatnonzero(self.biased).tolist())

    def run(
        self,
        codes: np.ndarray,
        values: np.ndarray | None,
        target: np.ndarray,
        weight: np.ndarray | None,
    ) -> None:
        data, valued = self._data(codes, values, target, weight)
        g, n_groups, size = self.peers.row_group, self.peers.n_row_groups, self.settings.batch_size
        found = np.zeros(2)
        with pool(self.n_threads, wait=True):
            for first in range(0, len(codes), size):
                n = min(size, len(codes) - first)
                self._weights = data[3][first : first + n].sum(axis=0, dtype=np.float64)
                mine = slice(first + n * g // n_groups, first + n * (g + 1) // n_groups)
                is_due = self.settings.until_due(self.n_steps) == 0
                step = self._due_step if is_due else self._step
                found += step(_part(data, mine, valued), valued)
        self.peers.add_groups(found)
        self.totals += found

    def _step(self, data: tuple[np.ndarray, ...], valued: bool) -> tuple[float, float]:
        assert self._scratch is not None
        s = self._scratch
        self.n_steps += 1
        found = self._forward(data, valued)
        if self.peers.n_row_groups > 1:
            rows, g = self._gradient(data, valued)
            rate = np.float32(self.settings.learning_rate)
            _kernels.apply_rows(self._table, self._state, rows, g, rate, self.decay, self.n_threads)
        else:
            total = self._group(data)
            _kernels.share_out(s.runs[2], s.runs[3], total, s.shares, self.n_threads)
            _kernels.update(
                *(self._table, self._state, s.samples[:3], data[1], s.entries, s.runs, s.shares),
                *(self.layout.starts, self._steps, self.objective.combine != "sum"),
                *(self.n_threads, valued),
            )
        self._weigh_fields(len(data[0]))
        return found

    def _forward(self, data: tuple[np.ndarray, ...], valued: bool) -> tuple[float, float]:
        assert self._scratch is not None
        layout, parts = self.layout, self._scratch.of(len(data[0]))
        objective: Any = self._kernel_objective()
        where = (layout.starts, layout.slot_starts, objective[3])
        _kernels.partial(self._table, data, *where, parts, self.n_threads, valued)
        n_scores = layout.n_outputs * (1 if self.objective.combine == "sum" else layout.n_fields)
        wait = self.peers.add_scores(parts[2][:, :n_scores])
        self._n_runs = super()._group(data)  # while scores are being summed
        wait()
        _kernels.finish(
            *(data, self._weights, layout.starts, layout.n_fields, objective, parts),
            self.n_threads,
        )
        mine = data[3].sum(axis=0, dtype=np.float64).mean()
        return float(np.sum(parts[4], dtype=np.float64)), float(mine)

    def _group(self, data: tuple[np.ndarray, ...]) -> int:
        """The number of distinct rows: `_forward` has grouped the batch already."""
        return self._n_runs

    def _gradient(
        self, data: tuple[np.ndarray, ...], valued: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.peers.merge(*super()._gradient(data, valued))

    def _weigh_fields(self, n: int) -> None:
        assert self._scratch is not None
        if self.objective.combine == "weighted":
            du = self._scratch.samples[3]
            du[:1] = du[:n].sum(axis=0)
            self.peers.add_groups(du[:1])
            super()._weigh_fields(1)

    def scores(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        layout, by_field = self.layout, self.objective.combine != "sum"
        n, g, n_groups = len(codes), self.peers.row_group, self.peers.n_row_groups
        mine = slice(n * g // n_groups, n * (g + 1) // n_groups)
        shape = (n, layout.n_outputs, layout.n_fields) if by_field else (n, layout.n_outputs)
        found = np.zeros(shape, np.float32)
        x = None if values is None else values[mine]
        none = np.zeros(layout.n_outputs)
        found[mine] = score(
            self._table, layout, codes[mine], x, none, self.n_threads, by_field=by_field
        )
        self.peers.add_all(found)
        offsets = self.offsets.astype(np.float32)
        if self.objective.is_vote:
            return found + offsets[:, None]
        if self.objective.combine == "weighted":
            found = found @ self.field_weights
        return found + offsets
