"""Checkpoints of a run of several workers: every shard of the columns writes its own files, and a
manifest, written last, makes them valid.

    checkpoint/
      checkpoint.json       where the run stands, the fields of every shard and its files
      table-7-0.bin         of shard 0, raw float32: the blocks of its fields, then the biases
      table-7-1.bin

A run may continue with another number of workers: each takes the columns of its fields from
whichever files have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoint import FORMAT, NAME, checked, keep_only, write_array
from ..engines._shards import shard_layout
from ..errors import StoreError
from ..files import disk_errors, read_sealed, sealed, sync_folder, write_atomically
from ..layout import Layout

if TYPE_CHECKING:
    from .peers import TorchPeers

__all__ = ["ShardedDisk", "column_pairs"]

BY_COLUMN = ("table", "state", "best", "mean")  # other arrays are the same on all workers


def column_pairs(
    layout: Layout, ours: Sequence[int], theirs: Sequence[int]
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield the parts that two shards of a table have in common: rows, our columns, theirs."""
    mine, other = shard_layout(layout, ours), shard_layout(layout, theirs)
    every = slice(0, layout.n_rows)
    for i in sorted({*ours} & {*theirs}):
        for o in range(layout.n_outputs):
            if layout.ranks[i]:
                yield every, mine.block(o, i), other.block(o, i)
        ours_b, theirs_b = (slice(one.n_columns, one.width) for one in (mine, other))
        yield layout.own(i), ours_b, theirs_b


class ShardedDisk:
    """Replaces the module `checkpoint` for an engine that has some of the columns; see there."""

    def __init__(self, peers: TorchPeers, layout: Layout, shares: list[list[int]]) -> None:
        self._peers, self._layout, self._shares = peers, layout, shares

    def agree(self, is_due: bool) -> bool:
        """Whether the first worker finds it due."""
        return bool(self._peers.told(is_due))

    def save(
        self, folder: Path, progress: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        peers = self._peers
        grid = peers.grid
        generation = peers.told(self._next(folder) if peers.is_first else None)

        def write() -> dict[str, Any]:
            try:
                return self._written(folder, generation, arrays) if grid.group == 0 else {}
            except Exception as error:  # at one worker: it is invalid for all
                raise StoreError(
                    f"a checkpoint could not be written by worker {grid.rank}: {error}"
                ) from error

        described = peers.each(write)
        if peers.is_first:
            shards: list[dict[str, Any]] = [
                {"fields": fields, "arrays": described[k]} for k, fields in enumerate(self._shares)
            ]
            body = {"format": FORMAT, "generation": generation, "shards": shards, **progress}
            with disk_errors(folder):
                write_atomically(folder / NAME, sealed(body))
                keep_only(folder, (a["file"] for s in shards for a in s["arrays"].values()))
        peers.told(None)  # all wait until it is valid

    def _next(self, folder: Path) -> int:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / NAME).exists():
                return 1
            body = read_sealed(folder / NAME, newest=FORMAT, what="checkpoint")
            return int(body["generation"]) + 1

    def _written(
        self, folder: Path, generation: int, arrays: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        shard = self._peers.grid.shard
        with disk_errors(folder):
            out = {
                name: write_array(folder / f"{name}-{generation}-{shard}.bin", array)
                for name, array in arrays.items()
                if name in BY_COLUMN or shard == 0
            }
            sync_folder(folder)
        return out

    def load(self, folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        if not self._peers.told((folder / NAME).exists()):
            return None
        found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
        self._peers.each(lambda: found.append(self._read(folder)))
        return found[0]

    def _read(self, folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        if not (folder / NAME).exists():
            raise StoreError(
                f"worker {self._peers.grid.rank} does not see {folder / NAME}, but worker 0 does; "
                "all workers must see the same folder"
            )
        body = read_sealed(folder / NAME, newest=FORMAT, what="checkpoint")
        if "shards" not in body:
            raise StoreError(f"{folder} is the checkpoint of a run of one process; use one again")
        shards = body.pop("shards")
        first = shards[0]["arrays"]
        arrays = {name: checked(folder, a) for name, a in first.items() if name not in BY_COLUMN}
        mine = self._shares[self._peers.grid.shard]
        width = shard_layout(self._layout, mine).width
        for name in BY_COLUMN:
            if name in first:
                arrays[name] = np.zeros((self._layout.n_rows, width), np.float32)
        for shard in shards:
            pairs = list(column_pairs(self._layout, mine, shard["fields"]))
            for name in BY_COLUMN if pairs else ():
                if name in first:
                    content = checked(folder, shard["arrays"][name])
                    for rows, ours, theirs in pairs:
                        arrays[name][rows, ours] = content[rows, theirs]
        return body, arrays
