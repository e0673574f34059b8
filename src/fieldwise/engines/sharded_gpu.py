"""The GPU engine over some of the columns, and some of the rows; see `sharded`. Sums are on the
device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ..layout import Layout
from ..objective import Objective
from . import StepSettings
from ._shards import held_columns, shard_layout, starting_columns
from .gpu import GpuEngine

__all__ = ["DevicePeers", "ShardedGpuEngine"]


class DevicePeers(Protocol):
    """The other engines of a run, for tensors."""

    row_group: int  # the index of this engine's part of a batch's rows
    n_row_groups: int
    is_recordable: bool  # whether their communication can be part of a CUDA graph

    def add_scores(self, scores: Any) -> Callable[[], None]:
        """Sum in place over the engines with other columns; see `Peers`."""
        ...

    def add_groups(self, array: Any) -> None:
        """Sum in place over the engines with the same columns and other rows."""
        ...

    def merge(self, rows: Any, gradients: Any) -> tuple[Any, Any]:
        """The distinct rows of all engines with the same columns, and their summed gradients."""
        ...


class ShardedGpuEngine(GpuEngine):
    """See `Engine`; `layout` is of the whole table, `fields` are those whose columns it has."""

    def __init__(
        self,
        layout: Layout,
        fields: Sequence[int],
        peers: DevicePeers,
        settings: StepSettings,
        objective: Objective,
        offsets: np.ndarray,
        *,
        half: bool = False,
    ) -> None:
        self.whole, self.fields, self.peers = layout, tuple(fields), peers
        self.disk: Any = None  # reads and writes its checkpoints
        super().__init__(shard_layout(layout, fields), settings, objective, offsets, half=half)

    def _describe(self) -> None:
        super()._describe()
        self._plain = False  # losses need the summed scores
        self._biased = self._int32(np.isin(np.arange(self.layout.n_fields), self.fields))
        self._is_shared = True

    @property
    def columns(self) -> np.ndarray:
        return held_columns(self.whole, self.fields)

    def initialise(self, seed: int, scale: float) -> None:
        """Set its columns to those of the whole initial table."""
        for start, part in starting_columns(self.whole, self.columns, seed, scale):
            self.table[start : start + len(part)] = torch.from_numpy(part).to(self.table)

    def _whole_group(self, part: list[Any]) -> None:
        if self.peers.is_recordable:
            super()._whole_group(part)
        else:
            self._seed.fill_(self.n_steps)
            self._steps(part, len(part[0]) // self.settings.batch_size, due=False)

    def _mine(self, part: list[Any], n_steps: int) -> list[Any]:
        g, n_groups = self.peers.row_group, self.peers.n_row_groups
        if n_groups == 1:
            return part
        n = len(part[0]) // n_steps
        mine = slice(n * g // n_groups, n * (g + 1) // n_groups)
        batches = (None if x is None else x.unflatten(0, (n_steps, n)) for x in part)
        return [None if x is None else x[:, mine].flatten(0, 1) for x in batches]

    def _summed(self, x: torch.Tensor) -> torch.Tensor:
        self.peers.add_groups(x)
        return x

    def _update(self, scratch: Any, found: Any, k: int, x: Any, *, due: bool) -> None:
        """The step; if groups share the rows, after summing the gradients of all groups."""
        if self.peers.n_row_groups == 1:
            super()._update(scratch, found, k, x, due=due)
            return
        if self._pull is None:
            self._pull = torch.zeros_like(self._state)
        self._take(scratch, found, k, x, self._pull, torch.zeros_like(self.decay), adds=True)
        rows = found.rows[k, : int(found.n_runs[k])]
        rows = rows[rows >= 0]
        g = self._pull[rows.long()]
        self._pull[rows.long()] = 0
        rows, g = self.peers.merge(rows, g)
        rows = rows.long()
        g += self.decay[rows, None] * self._table[rows].float()
        if due:
            pull = self._penalty_gradient()
            pull[rows] += g
            self._dense_step(pull)
            self._constrain()
            pull.zero_()
        else:
            self._adagrad(rows, g, int(self._seed))
        self._seed += 1

    def _field_scores(self, scratch: Any, rows: Any, values: Any) -> torch.Tensor:
        out = super()._field_scores(scratch, rows, values).contiguous()
        self.peers.add_scores(out)()
        return out
