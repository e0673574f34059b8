"""Numbers, texts, values and edits out of bytes: the same bytes, the same input."""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeVar

__all__ = ["Draw"]

T = TypeVar("T")

# What a number, a text or a name in a header may be replaced by.
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, -128, 2**31 - 1, 2**31, -(2**31), 2**53),
    *(2**62, 2**63, 2**64, 10**30, -(10**30), 10**400, 0.5, -0.0, 1e308, -1e308, 1e-320),
    *(float("nan"), float("inf"), float("-inf"), "", "a", "0", "-1", "nan", "1e999", "true"),
    *("../../etc/passwd", "/etc/passwd", "..", ".", "\0", "\ud800", "é", "x" * 300, "table"),
    *("logistic", "softmax", "vote", "numeric", "list", "linear", "quantile", "float16", "int8"),
    *([], {}, [[]], [None], [0], [-1], [2**40], ["a"], [1, 2, 3], {"a": 1}, [[1, 2], [3]]),
)
TEXTS = (
    *("", " ", "a", "b", "Bb", "7", "07", "7.0", "-0", "+7", "1e3", "1e400", "nan", "NaN", "NA"),
    *("null", "true", "TRUE", "False", "0", "1.0", "inf", "-inf", "2024-01-02T03:04:05", "\0"),
    *("2024-02-31", "2024-01-02", "2024-13-01T25:61", "0000-00-00", "９", "é", "\ud800", "t1"),
    *("t1|t2", "|", "a|", "\u2028", "𝟘", "1_000", "0x10", "9" * 40, "2024-01-02 03:04", "\r\n"),
)
NUMBERS = (
    *(0, 1, -1, 7, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**40, -(10**40)),
    *(0.0, -0.0, 0.5, 7.0, 1e-320, 1e15, 1e16, 1e150, 1e308, -1e308, 2.0**63),
    *(float("nan"), float("inf"), float("-inf")),
)


class Draw:
    """Takes bytes from the front; zeros once they are at an end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._data)

    def take(self, n: int) -> bytes:
        found = self._data[self._at : self._at + n]
        self._at += n
        return found + bytes(n - len(found))

    def rest(self) -> bytes:
        found, self._at = self._data[self._at :], len(self._data)
        return found

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1"""
        width = 1 if n <= 256 else 2 if n <= 1 << 16 else 8
        return int.from_bytes(self.take(width), "little") % n

    def coin(self) -> bool:
        return bool(self.below(2))

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def some(self, options: Sequence[T], most: int) -> list[T]:
        return [self.pick(options) for _ in range(self.below(most + 1))]

    def text(self) -> str:
        """A text that means something, or any."""
        if self.below(3):
            return self.pick(TEXTS)
        return self.take(self.below(12)).decode("utf-8", self.pick(("ignore", "replace")))

    def number(self) -> Any:
        kind = self.below(3)
        if kind == 0:
            return self.pick(NUMBERS)
        if kind == 1:
            return int.from_bytes(self.take(1 + self.below(9)), "little", signed=True)
        return struct.unpack("<d", self.take(8))[0]

    def value(self, depth: int = 0) -> Any:
        """Anything a person may put into a row."""
        kind = self.below(10 if depth < 2 else 7)
        if kind < 3:
            return self.text()
        if kind < 5:
            return self.number()
        if kind == 5:
            return self.pick((None, True, False, b"\xff", b"a", 1j, Ellipsis))
        if kind == 6:
            return self.time()
        items = [self.value(depth + 1) for _ in range(self.below(4))]
        if kind == 7:
            return items
        if kind == 8:
            return tuple(items)
        return {self.text(): item for item in items}

    def time(self) -> Any:
        return self.pick(self.times())

    def times(self) -> tuple[Any, ...]:
        """A day, a time of it, both, and a length of time."""
        day = dt.date.fromordinal(1 + self.below(3652059))
        hour = dt.time(self.below(24), self.below(60), self.below(60), self.below(1000000))
        zone = self.pick((None, dt.UTC, dt.timezone(dt.timedelta(hours=-9.5))))
        whole = dt.datetime.combine(day, hour, zone)
        return day, hour, whole, dt.timedelta(seconds=self.below(1 << 40))

    def json(self, depth: int = 0) -> Any:
        """Anything a header or a body may hold."""
        kind = self.below(8 if depth < 3 else 5)
        if kind < 3:
            return deepcopy(self.pick(HOSTILE))
        if kind == 3:
            return self.text()
        if kind == 4:
            return self.number()
        items = [self.json(depth + 1) for _ in range(self.below(4))]
        return items if kind < 7 else {self.text(): item for item in items}

    def edited(self, body: Any, most: int = 3) -> Any:
        """A copy of something of JSON with a few things in it replaced, left out or doubled."""
        body = json.loads(json.dumps(body))
        for _ in range(1 + self.below(most)):
            self._edit(body)
        return body

    def _edit(self, at: Any) -> None:
        while True:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            if not keys:
                return
            key = self.pick(keys)
            if isinstance(at[key], (dict, list)) and at[key] and self.below(4):
                at = at[key]
                continue
            how = self.below(6)
            if how == 0:
                del at[key]
            elif how == 1 and isinstance(at, list):
                at.insert(key, json.loads(json.dumps(at[key])))
            elif how == 2:
                at[self.text() if isinstance(at, dict) else key] = self.json()
            elif how == 3 and type(at[key]) in (int, float):
                at[key] += self.pick((-1, 1, 0.5, -100, 1000))
            else:
                at[key] = self.json()
            return

    def altered(self, content: bytes, most: int = 4) -> bytes:
        """Bytes of which some are replaced, left out or doubled, or that end early."""
        out = bytearray(content)
        for _ in range(1 + self.below(most)):
            if not out:
                break
            where = self.below(len(out))
            how = self.below(6)
            if how == 0:
                out[where] ^= 1 << self.below(8)
            elif how == 1:
                out[where] = self.below(256)
            elif how == 2:
                del out[where:]
            elif how == 3:
                del out[where : where + 1 + self.below(16)]
            elif how == 4:
                out[where:where] = out[where : where + 1 + self.below(64)]
            else:
                piece = self.take(1 + self.below(8))
                out[where : where + len(piece)] = piece
        return bytes(out)
