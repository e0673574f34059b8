"""A piece of a table and where it came from, so that an error can name the file and the row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

__all__ = ["CHUNK_ROWS", "Chunk", "Source"]

CHUNK_ROWS = 1 << 17


@dataclass(frozen=True)
class Chunk:
    """Rows of a table. `done` is how much of the source was read, in the source's unit."""

    frame: pl.DataFrame
    where: str = ""  # the file, empty for a table in memory
    first_row: int = 0  # of the frame within the file
    done: float = field(default=0, compare=False)

    def locate(self, row: int) -> str:
        """Row numbers count data rows from 1, the header aside."""
        number = f"row {self.first_row + row + 1:,}"
        return f"{self.where}, {number}" if self.where else number


class Source(Protocol):
    """A table that can be read again and again, a chunk at a time."""

    name: str
    columns: list[str]
    is_text: bool  # every column comes as text, whatever it means
    total: float | None  # of `Chunk.done`, where it is known beforehand

    def chunks(self) -> Iterator[Chunk]: ...
