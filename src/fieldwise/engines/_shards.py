"""For the engines over some of the columns: which columns they have, and their peers' protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from .. import maths
from ..layout import Layout

__all__ = ["Peers", "held_columns", "shard_layout", "starting_columns"]

PIECE = 4096  # rows at a time


class Peers(Protocol):
    """The other engines of a run. All of them must make the same calls in the same order."""

    row_group: int  # the index of this engine's part of a batch's rows
    n_row_groups: int

    def add_scores(self, scores: np.ndarray) -> Callable[[], None]:
        """Begin to sum in place over the engines with other columns and the same rows; call the
        result to wait for it."""
        ...

    def add_all(self, array: np.ndarray) -> None:
        """Sum in place over all engines."""
        ...

    def add_groups(self, array: np.ndarray) -> None:
        """Sum in place over the engines with the same columns and other rows."""
        ...

    def merge(self, rows: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distinct rows of all engines with the same columns, and their summed gradients."""
        ...


def shard_layout(layout: Layout, fields: Sequence[int]) -> Layout:
    """The layout of all fields, but with columns only for `fields`."""
    ranks = tuple(r if i in set(fields) else 0 for i, r in enumerate(layout.ranks))
    return Layout(layout.sizes, ranks, layout.n_outputs, layout.slots, layout.component)


def held_columns(layout: Layout, fields: Sequence[int]) -> np.ndarray:
    """The whole table's columns that a shard has: its fields' blocks, then the biases."""
    blocks = [layout.block(o, i) for o in range(layout.n_outputs) for i in sorted(fields)]
    held = [np.arange(block.start, block.stop) for block in blocks]
    return np.concatenate([*held, np.arange(layout.n_columns, layout.width)])


def starting_columns(
    layout: Layout, columns: np.ndarray, seed: int, scale: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield some columns of the whole initial table in pieces: the first row's number, and rows."""
    for start in range(0, layout.n_rows, PIECE):
        n = min(PIECE, layout.n_rows - start)
        drawn = maths.starting_rows(seed, scale, start, n, layout.width, layout.n_outputs)
        yield start, np.ascontiguousarray(drawn[:, columns])
