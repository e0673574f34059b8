"""What a Parquet file's footer says of its columns. We read it ourselves, because pyarrow crashes
the process on a column whose statistics do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Part", "parts_of"]

LARGEST = 1 << 20  # bytes of a footer; pyarrow writes 0.7 to 1.0 million for 4,000 columns
DEEPEST = 12  # nested structures; Parquet has 6
DELTA = {5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"}
I32, I64, TEXT, STRUCT = 5, 6, 8, 12  # Thrift's numbers of types
# The numbers of fields in parquet.thrift.
ROW_GROUPS, COLUMNS, ABOUT, ENCRYPTED = 4, 1, 3, (8, 9)
ENCODINGS, VALUES, UNPACKED = 2, 5, 6
IN_COLUMNS = (ROW_GROUPS, COLUMNS)
IN_ABOUT = (*IN_COLUMNS, ABOUT)
# The paths of all fields to read; others are skipped.
ASKED: set[tuple[int, ...]] = {
    (ROW_GROUPS,),
    IN_COLUMNS,
    *((*IN_COLUMNS, field) for field in (ABOUT, *ENCRYPTED)),
    *((*IN_ABOUT, field) for field in (ENCODINGS, VALUES, UNPACKED)),
}
# The type of every list's members. pyarrow assumes this, whatever the list's own header says.
MEMBERS: dict[tuple[int, ...], int] = {
    **{(field,): STRUCT for field in (2, 4, 5, 7)},
    **{(ROW_GROUPS, field): STRUCT for field in (1, 4)},
    (*IN_ABOUT, 2): I32,
    (*IN_ABOUT, 3): TEXT,
    **{(*IN_ABOUT, field): STRUCT for field in (8, 13)},
    **{(*IN_ABOUT, 16, field): I64 for field in (2, 3)},
    (*IN_ABOUT, 17, 2): I32,
}


@dataclass(frozen=True)
class Part:
    """A column of a row group."""

    num_values: int
    total_uncompressed_size: int
    deltas: frozenset[str]  # delta encodings


def parts_of(body: bytes) -> list[list[Part]]:
    """The columns of every row group. A ValueError if the footer is invalid."""
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
    """Thrift's compact protocol: structures as dicts from numbers of fields to values. Refuses what
    pyarrow would read differently."""

    def __init__(self, content: Sequence[int]) -> None:
        self._content, self._at = content, 0

    def _byte(self) -> int:
        found = self._content[self._at]
        self._at += 1
        return found

    def _varint(self, bits: int = 32) -> int:
        found = shift = 0
        while shift < bits + 7:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128 and found < 1 << bits:
                return found
            shift += 7
        raise ValueError(f"a number of more than {bits} bits")

    def _number(self, bits: int = 32) -> int:
        found = self._varint(bits)
        return (found >> 1) ^ -(found & 1)

    def struct(self, way: tuple[int, ...] = (), depth: int = 0) -> dict[int, Any]:
        """The fields to read of a structure; `way` is its path of field numbers."""
        found: dict[int, Any] = {}
        seen: set[int] = set()
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._number()
            if field in seen or not 0 < field < 1 << 15:
                raise ValueError(f"field {field} is there twice, or is not a valid number")
            seen.add(field)
            kind, here = head & 15, (*way, field)
            value = kind == 1 if kind in (1, 2) else self._value(kind, here, depth + 1)
            if here in ASKED:
                found[field] = value
        return found

    def _value(self, kind: int, way: tuple[int, ...], depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError("structures nested too deeply")
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, I32, I64):
            return self._number(64 if kind == I64 else 32)
        if kind in (7, TEXT):
            size = 8 if kind == 7 else self._varint()
            if size > len(self._content) - self._at:
                raise ValueError("a text beyond the end")
            self._at += size
            return None  # texts are not needed
        if kind in (9, 10):
            return self._list(way, depth)
        if kind == STRUCT:
            return self.struct(way, depth)
        raise ValueError(f"a value of kind {kind}")

    def _list(self, way: tuple[int, ...], depth: int) -> list[Any]:
        head = self._byte()
        kind, size = head & 15, head >> 4 if head >> 4 < 15 else self._varint()
        if kind != MEMBERS.get(way, kind):
            raise ValueError(f"a list {way} of values of kind {kind}")
        members = (self._value(kind, way, depth + 1) for _ in range(size))
        return [member for member in members if way in ASKED]
