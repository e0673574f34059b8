"""What a Parquet file says of its columns, read by ourselves: asked for those of a column whose
statistics do not fit, pyarrow ends the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Part", "parts_of"]

LARGEST = 4 << 20  # bytes of a footer
DEEPEST = 12  # structures in one another; Parquet has 6
DELTA = {5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"}
# The numbers of fields, as parquet.thrift has them.
ROW_GROUPS, COLUMNS, ABOUT, ENCRYPTED = 4, 1, 3, (8, 9)
ENCODINGS, VALUES, UNPACKED = 2, 5, 6


@dataclass(frozen=True)
class Part:
    """A column of a row group."""

    num_values: int
    total_uncompressed_size: int
    deltas: frozenset[str]  # encodings that are differences


def parts_of(body: bytes) -> list[list[Part]]:
    """Of every row group its columns. A ValueError where it is no footer."""
    size = int.from_bytes(body[-8:-4], "little")
    if body[-4:] != b"PAR1" or not 0 < size <= min(LARGEST, len(body) - 12):
        raise ValueError(f"its footer has {size:,} bytes, and {LARGEST:,} is the most")
    try:
        said = _Compact(body[len(body) - 8 - size : -8]).struct()
        return [[_part(column) for column in group[COLUMNS]] for group in said[ROW_GROUPS]]
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its footer is damaged: {error!r}") from error


def _part(column: dict[int, Any]) -> Part:
    if any(field in column for field in ENCRYPTED):
        raise ValueError("a column is encrypted")
    about = column[ABOUT]
    numbers = about[VALUES], about[UNPACKED]
    if min(numbers) < 0:
        raise ValueError(f"a column of {numbers} values and bytes")
    return Part(*numbers, frozenset(DELTA[e] for e in about[ENCODINGS] if e in DELTA))


class _Compact:
    """Thrift's compact protocol: structures as dicts from numbers of fields to values."""

    def __init__(self, content: Sequence[int]) -> None:
        self._content, self._at = content, 0

    def _byte(self) -> int:
        found = self._content[self._at]
        self._at += 1
        return found

    def _varint(self) -> int:
        found = shift = 0
        while shift < 70:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
        raise ValueError("a number without an end")

    def _number(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)

    def struct(self, depth: int = 0) -> dict[int, Any]:
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._number()
            kind = head & 15
            found[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError("structures in one another without an end")
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._number()
        if kind in (7, 8):
            size = 8 if kind == 7 else self._varint()
            if size > len(self._content) - self._at:
                raise ValueError("a text beyond the end")
            self._at += size
            return None  # nobody asks for texts
        if kind in (9, 10):
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._varint()
            return [self._value(head & 15, depth + 1) for _ in range(size)]
        if kind == 12:
            return self.struct(depth)
        raise ValueError(f"a value of kind {kind}")
