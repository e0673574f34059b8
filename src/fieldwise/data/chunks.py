"""Tables in pieces: `Chunk` and `Source`, and running work on pieces in threads."""

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
# What polars raises for damaged files; its panics are not even an Exception.
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)

# Our files have at most one row per byte; one that claims far more is made to exhaust memory.
ROWS_A_BYTE = 64


def unpacked(content: bytes) -> pl.DataFrame:
    """The frame in one of our Parquet files; refuses one with far more rows than bytes."""
    n_rows = pl.scan_parquet(io.BytesIO(content)).select(pl.len()).collect().item()
    if n_rows > ROWS_A_BYTE * len(content):
        raise ValueError(f"{n_rows:,} rows in {len(content):,} bytes")
    return pl.read_parquet(io.BytesIO(content))


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table. `done` is how much of the source was read, in the unit of `total`."""

    frame: pl.DataFrame
    where: str = ""  # the file; empty for a table in memory
    first_row: int = 0  # of the frame within the file
    done: float = 0

    def locate(self, row: int) -> str:
        """The name of a row for error messages; data rows count from 1, without the header."""
        number = f"row {self.first_row + row + 1:,}"
        return f"{self.where}, {number}" if self.where else number


class Source(Protocol):
    """A table that can be read repeatedly, a chunk at a time."""

    name: str
    columns: list[str]
    total: float | None  # what `Chunk.done` ends at, if known beforehand
    target: str | None  # the column to learn, if the format says which
    kinds: Mapping[str, str]  # of columns, if the format says so

    def chunks(self) -> Iterator[Chunk]: ...


def in_parallel(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Call `work` on every item, on as many threads as polars has: polars and NumPy release the
    GIL."""
    with ThreadPoolExecutor(max(1, pl.thread_pool_size())) as pool:
        return list(pool.map(work, items))


def ahead(items: Iterable[A]) -> Iterator[A]:
    """Yield the same items, making the next one in a thread while one is used."""
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        waiting: Any = pool.submit(next, iterator, end)
        while (item := waiting.result()) is not end:
            waiting = pool.submit(next, iterator, end)
            yield item
