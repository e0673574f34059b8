"""Batches of a store in a seeded order, which can be stopped and resumed exactly.

An epoch is shuffled in two steps: first blocks of neighbouring rows, then the rows within each
group of blocks. A group is read in long runs and held in memory, so a table larger than memory
still streams; a table that fits in one group is shuffled entirely.

The order is a function of seed, epoch, the number of rows and the size of a group. It is drawn from
the raw bits of Philox, whose stream is fixed, so it is the same on every machine and with every
NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from ..errors import SettingError
from ..layout import Layout

__all__ = ["Batches", "Cursor", "Rows", "Seen", "Table", "gathered", "row_weights", "wide_values"]

BLOCK = 1 << 13  # neighbouring rows that are shuffled as one
GROUP = 1 << 20  # rows shuffled among each other
PIECE = 1 << 16  # rows gathered at a time


class Table(Protocol):
    """Rows that can be read by their numbers: a `Store`, or `Rows` in memory.

    One that keeps its rows on a device also has `shuffled`, from which `Batches` then gets whole
    groups in order.
    """

    n_rows: int

    @property
    def names(self) -> list[str]: ...

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]: ...


class Rows:
    """A `Table` of arrays in memory, as a store has them: codes (n, S), target (n, targets), ..."""

    def __init__(self, **arrays: np.ndarray | None) -> None:
        given = {k: a for k, a in arrays.items() if a is not None}
        self._arrays = {k: a[:, None] if a.ndim == 1 else a for k, a in given.items()}
        self.n_rows = len(self._arrays["codes"])

    @property
    def names(self) -> list[str]:
        return list(self._arrays)

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        return {k: a[start:stop] for k, a in self._arrays.items()}


class Seen:
    """A `Table` in which every category with a count of 0 is coded as never seen: -1, or in the
    slots `rare` as 0, the rare row."""

    def __init__(
        self, rows: Table, layout: Layout, counts: np.ndarray, rare: Sequence[int] = ()
    ) -> None:
        self._rows, self.n_rows = rows, rows.n_rows
        self._unseen = np.full(layout.n_slots, -1, np.int32)
        self._unseen[list(rare)] = 0
        self._known = np.append(counts > 0, False)  # at -1: unseen values stay unseen
        self._first = layout.offsets[layout.slot_owner]

    @property
    def names(self) -> list[str]:
        return self._rows.names

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        found = dict(self._rows.read(start, stop))
        codes = found["codes"]
        known = self._known[np.where(codes < 0, -1, codes + self._first)]
        found["codes"] = np.where(known, codes, self._unseen)
        return found


def gathered(rows: Table, only: np.ndarray | None) -> dict[str, np.ndarray]:
    """The rows where `only` is true, copied into memory."""
    if only is None:
        return rows.read(0, rows.n_rows)

    def some(start: int) -> dict[str, np.ndarray]:
        mask = only[start : start + PIECE]
        if not mask.any():
            return {}
        found = rows.read(start, min(start + PIECE, rows.n_rows))
        return {name: a[mask] for name, a in found.items()}

    with ThreadPoolExecutor() as pool:
        parts = [part for part in pool.map(some, range(0, rows.n_rows, PIECE)) if part]
    if not parts:
        return rows.read(0, 0)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def wide_values(
    codes: np.ndarray, values: np.ndarray | None, valued: Sequence[int]
) -> np.ndarray | None:
    """values (n, valued slots) of a store -> (n, S) as engines take them, 1 for a category; None if
    every slot is a category."""
    if not valued:
        return None
    wide = np.ones(codes.shape, dtype=np.float32)
    if values is not None:
        wide[:, list(valued)] = values
    return wide


def row_weights(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """(n,) the weight of every row; 1 if the batch has none."""
    return batch["weight"][:, 0] if "weight" in batch else np.ones(len(batch["codes"]))


@dataclass(frozen=True)
class Cursor:
    """The position of a shuffle: the next batch, and what its order depends on."""

    seed: int
    epoch: int
    batch: int
    n_rows: int
    batch_size: int
    group_rows: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> Cursor:
        return cls(**{f.name: int(body[f.name]) for f in fields(cls)})


def _bits(n: int, *key: int) -> np.ndarray:
    """Random bits, fixed by the key; sorting by them shuffles."""
    return np.random.Philox(np.random.SeedSequence(key)).random_raw(n)


def _order(n: int, *key: int) -> np.ndarray:
    """A permutation of 0 .. n-1, fixed by the key."""
    return np.argsort(_bits(n, *key), kind="stable")


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(parts)


class Batches:
    """Iterates over the batches of one epoch at a time, from a cursor on.

    batches = Batches(store, 2048, seed=7)
    for batch in batches:            # the rest of the current epoch; then the cursor is on the next
        batch["codes"], batch["target"], ...
    batches.cursor                   # save it; Batches(store, 2048, cursor=...) continues there

    A cursor has its own seed.

    `only` (n_rows,) is true for the rows to use.
    """

    def __init__(
        self,
        store: Table,
        batch_size: int,
        *,
        only: np.ndarray | None = None,
        seed: int = 0,
        cursor: Cursor | None = None,
        group_rows: int = GROUP,
    ) -> None:
        if batch_size < 1:
            raise SettingError(f"batch_size={batch_size} must be at least 1")
        if group_rows < BLOCK:
            raise SettingError(f"group_rows={group_rows} must be at least {BLOCK}")
        self.store = store
        self.batch_size = batch_size
        self._only = only
        starts = np.arange(0, store.n_rows, BLOCK)
        if only is None:
            self._sizes = np.minimum(store.n_rows - starts, BLOCK)
        else:
            self._sizes = np.add.reduceat(only, starts, dtype=np.int64)
        self.n_rows = int(self._sizes.sum())
        if seed < 0:
            raise SettingError(f"seed={seed} must be at least 0")
        self._per_group = group_rows // BLOCK
        self._cursor = Cursor(seed, 0, 0, self.n_rows, batch_size, group_rows)
        if cursor is not None:
            self.cursor = cursor
        self._loaded: tuple[tuple[int, int, int], dict[str, np.ndarray]] | None = None

    @property
    def cursor(self) -> Cursor:
        return self._cursor

    @cursor.setter
    def cursor(self, cursor: Cursor) -> None:
        for name in ("n_rows", "batch_size", "group_rows"):
            mine, its = getattr(self._cursor, name), getattr(cursor, name)
            if mine != its:
                raise SettingError(f"the cursor was taken with {name}={its}, here it is {mine}")
        self._cursor = cursor

    def __len__(self) -> int:
        """The number of batches in an epoch; the last may be smaller."""
        return -(-self.n_rows // self.batch_size)

    def _groups(self, epoch: int) -> list[np.ndarray]:
        """The blocks of each group, in the epoch's order."""
        n_blocks = len(self._sizes)
        order = _order(n_blocks, self.cursor.seed, epoch)
        return [order[i : i + self._per_group] for i in range(0, n_blocks, self._per_group)]

    def _load(self, group: int, blocks: np.ndarray, epoch: int) -> dict[str, np.ndarray]:
        """The rows of a group in the epoch's order; the last group loaded is kept."""
        key = (self.cursor.seed, epoch, group)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # free the last group before the next is read
            n = int(self._sizes[blocks].sum())
            spans = [(b * BLOCK, min((b + 1) * BLOCK, self.store.n_rows)) for b in blocks.tolist()]
            kept = [None if self._only is None else self._only[a:b] for a, b in spans]
            bits = _bits(n, self.cursor.seed, epoch, group + 1)
            if hasattr(self.store, "shuffled"):
                rows = self.store.shuffled(spans, kept, bits)
            else:
                rows = self._shuffled(spans, kept, bits)
            self._loaded = (key, rows)
        return self._loaded[1]

    def _shuffled(
        self, spans: list[tuple[int, int]], kept: list[np.ndarray | None], bits: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Read the spans, one long read each, and shuffle their rows in memory."""
        runs = []
        for (start, stop), mask in zip(spans, kept, strict=True):
            found = self.store.read(start, stop)
            runs.append(found if mask is None else {k: a[mask] for k, a in found.items()})
        order = np.argsort(bits, kind="stable")
        return {k: np.concatenate([r[k] for r in runs])[order] for k in self.store.names}

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        epoch = self.cursor.epoch
        groups = self._groups(epoch)
        sizes = [int(self._sizes[b].sum()) for b in groups]
        ends = np.cumsum(sizes)
        while self.cursor.batch < len(self):
            start = self.cursor.batch * self.batch_size
            stop = min(start + self.batch_size, self.n_rows)
            parts: list[dict[str, np.ndarray]] = []
            while start < stop:
                group = int(np.searchsorted(ends, start, side="right"))
                first = int(ends[group]) - sizes[group]
                upto = min(stop, int(ends[group]))
                rows = self._load(group, groups[group], epoch)
                parts.append({k: a[start - first : upto - first] for k, a in rows.items()})
                start = upto
            self._cursor = replace(self._cursor, batch=self._cursor.batch + 1)
            if len(parts) == 1:
                yield parts[0]
            else:
                yield {k: _joined([p[k] for p in parts]) for k in parts[0]}
        self._cursor = replace(self._cursor, epoch=epoch + 1, batch=0)
