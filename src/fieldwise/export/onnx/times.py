"""Calendar parts of a column of times, in a graph of ONNX: text such as 2024-05-31T17:05:00.

ONNX cannot index characters, so text is cut at "-" and ":". The possible pieces are few and are
looked up: years, months, and a day with the hour that may follow it, "31", "31T17" or "31 17".
"""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..parts import Part
from .graph import Graph

if TYPE_CHECKING:
    from .columns import Numbering

__all__ = ["time_rows"]

END = "--:"  # appended to every text, so that all have all pieces
CLOCK = ("T", " ", "t")  # between a date and an hour
NONE = -1 << 40  # for an invalid piece: any sum with it is below 0
MONTH, YEAR = 32, 512  # a date is a whole number: YEAR * year + MONTH * month + day


def time_rows(graph: Graph, column: str, parts: Sequence[Part], numbering: Numbering) -> list[str]:
    """For every part of a column, (n, 1) the numbers of its values. What is not a time counts as
    missing here, though the model itself refuses it."""
    pieces = _Pieces(graph, column)
    out = []
    for part in parts:
        key = graph("Max", getattr(pieces, str(part.field.part)), np.array(-1))
        known = [_number(word) for word in part.words["category"].to_list()]
        codes = np.append(part.words["code"].to_numpy(), part.missing)
        unseen = int(numbering.of(part.number, part.unseen))
        keys = np.array([*known, -1], np.int64)
        out.append(graph.lookup(key, keys, numbering.of(part.number, codes), unseen))
    return out


def _number(word: str) -> int:
    """The whole number of a category: of a date, or the part itself."""
    year, *rest = word.split("-")
    return YEAR * int(year) + MONTH * int(rest[0]) + int(rest[1]) if rest else int(year)


class _Pieces:
    """The parts of a column as whole numbers (n, 1), below 0 where there are none."""

    def __init__(self, graph: Graph, column: str) -> None:
        self._graph = graph
        whole = graph("StringConcat", column, np.array([END], dtype=object))
        self._dates = graph.several("StringSplit", whole, n=2, delimiter="-", maxsplit=2)[0]

    def _piece(self, pieces: str, k: int) -> str:
        return self._graph("Gather", pieces, np.array(k), axis=2)

    def _looked_up(self, piece: str, known: dict[str, int]) -> str:
        return self._graph.lookup(piece, list(known), np.array(list(known.values())), NONE)

    @cached_property
    def _clocks(self) -> str:
        """What follows the month, cut into two or three: day and hour, minute, second."""
        rest = self._piece(self._dates, 2)
        return self._graph.several("StringSplit", rest, n=2, delimiter=":", maxsplit=2)[0]

    @cached_property
    def _year_text(self) -> str:
        return self._piece(self._dates, 0)

    @cached_property
    def year(self) -> str:
        return self._looked_up(self._year_text, {f"{y:04}": y for y in range(1, 10_000)})

    @cached_property
    def month(self) -> str:
        return self._looked_up(self._piece(self._dates, 1), {f"{m:02}": m for m in range(1, 13)})

    @cached_property
    def _day_and_hour(self) -> str:
        return self._piece(self._clocks, 0)

    @cached_property
    def day(self) -> str:
        hours = [f"{t}{h:02}{end}" for t in CLOCK for h in range(24) for end in ("", "--")]
        days = {f"{d:02}{rest}": d for d in range(1, 32) for rest in ("--", *hours)}
        return self._looked_up(self._day_and_hour, days)

    @cached_property
    def hour(self) -> str:
        dates = [f"{d:02}{t}" for d in range(1, 32) for t in CLOCK]
        hours = {f"{date}{h:02}{end}": h for date in dates for h in range(24) for end in ("", "--")}
        return self._looked_up(self._day_and_hour, hours)

    @cached_property
    def minute(self) -> str:
        minutes = {f"{m:02}{end}": m for m in range(60) for end in ("", "--")}
        return self._looked_up(self._piece(self._clocks, 1), minutes)

    @cached_property
    def date(self) -> str:
        graph = self._graph
        months = graph("Mul", self.month, np.array(MONTH))
        years = graph("Mul", self.year, np.array(YEAR))
        return graph("Add", graph("Add", years, months), self.day)

    @cached_property
    def weekday(self) -> str:
        """1 is Monday. There are fourteen kinds of years."""
        graph = self._graph
        kinds = {f"{y:04}": _kind(y) for y in range(1, 10_000)}
        kind = self._looked_up(self._year_text, kinds)
        month = graph("Add", graph("Mul", kind, np.array(16)), self.month)
        before = graph("Gather", _DAYS_BEFORE, graph("Max", month, np.array(0)))
        weekday = graph("Mod", graph("Add", before, self.day), np.array(7))
        is_none = graph("Less", self.date, np.array(0))
        return graph("Where", is_none, np.array(NONE), graph("Add", weekday, np.array(1)))


def _kind(year: int) -> int:
    """One number for the weekday that a year starts with and whether it has a leap day."""
    return dt.date(year, 1, 1).weekday() + 7 * calendar.isleap(year)


def _days_before() -> np.ndarray:
    """At 16 kind + month what to add to a day: the sum modulo 7 is the weekday, 0 for Monday."""
    out = np.zeros(16 * 14, np.int64)
    for year in range(2000, 2028):  # all kinds of years
        for month in range(1, 13):
            out[16 * _kind(year) + month] = dt.date(year, month, 1).weekday() + 6
    return out


_DAYS_BEFORE = _days_before()
