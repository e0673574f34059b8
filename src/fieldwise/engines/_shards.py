"""What the engines over some of the columns share: which those are, and who holds the others."""

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

    row_group: int  # which part of a batch's rows is this one's
    n_row_groups: int

    def add_scores(self, scores: np.ndarray) -> Callable[[], None]:
        """Sum over those who hold other columns for the same rows, in place: begun here, done once
        what is returned was called."""
        ...

    def add_all(self, array: np.ndarray) -> None:
        """Sum over everyone, in place."""
        ...

    def add_groups(self, array: np.ndarray) -> None:
        """Sum over those who hold the same columns for other rows, in place."""
        ...

    def merge(self, rows: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The distinct rows of all who hold the same columns, and their summed gradients."""
        ...


def shard_layout(layout: Layout, fields: Sequence[int]) -> Layout:
    """The same fields, with the columns of some alone."""
    ranks = tuple(r if i in set(fields) else 0 for i, r in enumerate(layout.ranks))
    return Layout(layout.sizes, ranks, layout.n_outputs, layout.slots, layout.component)


def held_columns(layout: Layout, fields: Sequence[int]) -> np.ndarray:
    """Of the whole table, those of a shard: its fields' blocks, then the biases."""
    blocks = [layout.block(o, i) for o in range(layout.n_outputs) for i in sorted(fields)]
    held = [np.arange(block.start, block.stop) for block in blocks]
    return np.concatenate([*held, np.arange(layout.n_columns, layout.width)])


def starting_columns(
    layout: Layout, columns: np.ndarray, seed: int, scale: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Some columns of the whole table at its beginning: the first row and rows, some at a time."""
    for start in range(0, layout.n_rows, PIECE):
        n = min(PIECE, layout.n_rows - start)
        drawn = maths.starting_rows(seed, scale, start, n, layout.width, layout.n_outputs)
        yield start, np.ascontiguousarray(drawn[:, columns])
