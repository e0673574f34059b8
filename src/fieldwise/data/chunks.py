"""A table a piece at a time: what a piece knows of where it came from, and work on many at once."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import polars as pl

__all__ = ["CHUNK_ROWS", "UNREADABLE", "Chunk", "Source", "ahead", "in_parallel", "unpacked"]

A = TypeVar("A")
B = TypeVar("B")

CHUNK_ROWS = 1 << 17
# What polars raises over bytes that are no sound file; a panic of it is no Exception even.
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)

# Ours have one a byte or fewer. What claims more is no vocabulary but a trap for memory.
ROWS_A_BYTE = 64


def unpacked(content: bytes) -> pl.DataFrame:
    """A Parquet file of ours, read once its rows are known to fit its size."""
    n_rows = pl.scan_parquet(io.BytesIO(content)).select(pl.len()).collect().item()
    if n_rows > ROWS_A_BYTE * len(content):
        raise ValueError(f"{n_rows:,} rows in {len(content):,} bytes")
    return pl.read_parquet(io.BytesIO(content))


@dataclass(frozen=True)
class Chunk:
    """Rows of a table. `done` is how much of the source was read, in the source's unit."""

    frame: pl.DataFrame
    where: str = ""  # the file, empty for a table in memory
    first_row: int = 0  # of the frame within the file
    done: float = 0

    def locate(self, row: int) -> str:
        """Row numbers count data rows from 1, the header aside."""
        number = f"row {self.first_row + row + 1:,}"
        return f"{self.where}, {number}" if self.where else number


class Source(Protocol):
    """A table that can be read again and again, a chunk at a time."""

    name: str
    columns: list[str]
    total: float | None  # of `Chunk.done`, where it is known beforehand
    target: str | None  # the column to learn, where the format says which
    kinds: Mapping[str, str]  # of columns, where the format says so

    def chunks(self) -> Iterator[Chunk]: ...


def in_parallel(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """One call an item on polars' number of threads: polars and NumPy leave the GIL in them."""
    with ThreadPoolExecutor(max(1, pl.thread_pool_size())) as pool:
        return list(pool.map(work, items))


def ahead(items: Iterable[A]) -> Iterator[A]:
    """The same items, the next one made in a thread while this one is used."""
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        waiting: Any = pool.submit(next, iterator, end)
        while (item := waiting.result()) is not end:
            waiting = pool.submit(next, iterator, end)
            yield item
