"""The GPU engine over some of the columns; see `sharded`. Scores are summed on the device."""

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

    is_recordable: bool  # whether the sum can be part of a graph

    def add_scores(self, scores: Any) -> Callable[[], None]:
        """Sum over those who hold other columns, in place; see `Peers`."""
        ...


class ShardedGpuEngine(GpuEngine):
    """See `Engine`; `layout` is the whole one, and `fields` are those whose columns it holds."""

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
        self.disk: Any = None  # where its checkpoints go
        super().__init__(shard_layout(layout, fields), settings, objective, offsets, half=half)

    def _describe(self) -> None:
        super()._describe()
        self._plain = False  # losses come after the sum
        self._biased = self._int32(np.isin(np.arange(self.layout.n_fields), self.fields))
        self._is_shared = True

    @property
    def columns(self) -> np.ndarray:
        return held_columns(self.whole, self.fields)

    def initialise(self, seed: int, scale: float) -> None:
        """The columns it holds of the whole table's beginning."""
        for start, part in starting_columns(self.whole, self.columns, seed, scale):
            self.table[start : start + len(part)] = torch.from_numpy(part).to(self.table)

    def _whole_group(self, part: list[Any]) -> None:
        if self.peers.is_recordable:
            super()._whole_group(part)
        else:
            self._seed.fill_(self.n_steps)
            self._steps(part, len(part[0]) // self.settings.batch_size, due=False)

    def _field_scores(self, scratch: Any, rows: Any, values: Any) -> torch.Tensor:
        out = super()._field_scores(scratch, rows, values).contiguous()
        self.peers.add_scores(out)()
        return out
