"""Profiles of a table's columns, in one pass: what each holds, in numbers. `inferring` decides what
they mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from ..errors import SchemaError
from ..progress import progress
from .chunks import Chunk, Source, ahead, in_parallel
from .keys import KeyCounts
from .lists import flat_lists, holds_lists
from .schema import Field
from .values import field_keys

__all__ = ["ColumnProfile", "looks_at", "parsed_kind", "profile"]

# Distinct fractions and times are not counted past this many.
FRACTIONS = 1 << 16
WHOLE = r"^\s*[+-]?(0|[1-9][0-9]*)(\.0*)?\s*$"  # 007 is a name, not a number
DATE = r"^\d{4}-\d{2}-\d{2}"
CLOCK = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}"


@dataclass(frozen=True)
class ColumnProfile:
    """What one column holds. `dtype` is string, integer, float, boolean, date or time."""

    name: str
    dtype: str
    n_rows: int
    n_missing: int
    n_distinct: int | None  # None: too many to count, and numeric
    counts: np.ndarray  # of the distinct values, without missing; empty if not counted
    is_dated: bool = False  # every value begins with an ISO date
    longest: int = 0  # the length of the longest list; the other facts are then of the items
    is_weighted: bool = False  # the values in lists carry weights
    known_kind: str | None = None  # what the format says it is

    @property
    def decodes_to(self) -> str:
        """The dtype of a field, or a target, that has its values as categories."""
        return self.dtype if self.dtype in ("integer", "float", "boolean") else "string"

    @property
    def kind(self) -> str:
        """The guessed kind: category, numeric, time or list"""
        if self.longest:
            return "list"
        if self.known_kind is not None:
            return self.known_kind
        if self.dtype in ("date", "time"):
            return "time"
        if self.dtype == "float":
            return "numeric"
        if self.dtype == "integer":
            few = self.n_distinct is not None and self.n_distinct * 4 <= self.n_rows
            return "category" if few else "numeric"
        return "category"

    def rare_share(self, min_count: int) -> float:
        """The share of all values whose category is seen fewer than `min_count` times."""
        n_values = max(self.n_rows, int(self.counts.sum()) + self.n_missing)
        return float(self.counts[self.counts < min_count].sum()) / n_values


class _Look:
    """Gathers one column's profile."""

    def __init__(self, name: str, known_kind: str | None, kind: str | None) -> None:
        self.name = name
        self._known_kind = known_kind
        word, separator = parsed_kind(kind)
        self._list = Field(name=name, kind="list", separator=separator) if word == "list" else None
        self._longest, self._is_weighted = 0, False
        self.n_rows = self.n_missing = 0
        self._keys: KeyCounts | None = KeyCounts(Field(name=name))
        self._n_judged = 1  # keys below this number have been judged
        self._typed: set[str] = set()  # the types of the chunks' columns
        self._could_be = dict.fromkeys(("whole", "number", "boolean", "date", "clock"), True)
        self._says_something = False  # whether a text is not blank

    def add(self, chunk: Chunk) -> None:
        column = chunk.frame[self.name]
        self.n_rows += len(column)
        if holds_lists(column) or (self._list is not None and self._list.separator is not None):
            self._list = self._list or Field(name=self.name, kind="list")
            found = flat_lists(chunk, self._list)
            self._longest = max(self._longest, int(found.lengths.max(initial=0)))
            self._is_weighted |= found.weights is not None
            chunk, column = found.items, found.items.frame[self.name]
        said = _typed(column)
        self._typed.add(said)
        if said == "float":
            column = column.cast(pl.Float64).fill_nan(None)
        elif said == "empty":
            self.n_missing += len(column)
            return
        if self._keys is None:
            self.n_missing += column.null_count()
            if said == "text":
                self._judge(column.drop_nulls().unique())
            return
        ids = self._keys.add(chunk)
        self.n_missing += int(np.count_nonzero(ids == 0))
        n_known = len(self._keys.counts)
        if n_known > self._n_judged:
            fresh = column.filter(pl.Series(ids >= self._n_judged))
            self._n_judged = n_known
            self._judge(fresh.unique())
        self._forget_if_many()

    def absorb(self, other: _Look) -> None:
        """Add another look at the same column."""
        self._list = self._list or other._list
        self._longest = max(self._longest, other._longest)
        self._is_weighted |= other._is_weighted
        self.n_rows += other.n_rows
        self.n_missing += other.n_missing
        self._typed |= other._typed
        self._says_something |= other._says_something
        self._could_be = {k: v and other._could_be[k] for k, v in self._could_be.items()}
        if self._keys is None or other._keys is None:
            self._keys = None
            return
        self._keys.absorb(other._keys)
        self._n_judged = len(self._keys.counts)
        self._forget_if_many()

    def _forget_if_many(self) -> None:
        fractions = self._could_be["number"] and not self._could_be["whole"]
        many = "time" in self._typed or (fractions and bool(self._typed & {"float", "text"}))
        if many and self._keys is not None and len(self._keys.counts) > FRACTIONS:
            self._keys = None

    def _judge(self, fresh: pl.Series) -> None:
        """Rule out the types that these new values do not fit."""
        could = self._could_be
        if fresh.dtype == pl.String:
            fresh = fresh.filter(fresh.str.strip_chars() != "")
            self._says_something |= len(fresh) > 0
            if could["whole"]:
                could["whole"] = bool(fresh.str.contains(WHOLE).all())
            if could["number"]:
                number = fresh.str.strip_chars().cast(pl.Float64, strict=False)
                named = fresh.str.contains(r"^\s*[+-]?0[0-9]").any()  # leading zeros
                could["number"] = not named and number.null_count() == 0
            if could["boolean"]:
                could["boolean"] = bool(fresh.str.to_lowercase().is_in(["true", "false"]).all())
            if could["date"]:
                could["date"] = bool(fresh.str.contains(DATE).all())
            if could["clock"]:
                could["clock"] = bool(fresh.str.contains(CLOCK).all())
        elif fresh.dtype.is_float():
            finite = fresh.filter(fresh.is_finite())
            whole = (finite == finite.round()).all() and len(finite) == len(fresh)
            could["whole"] = could["whole"] and bool(whole)

    def finish(self) -> ColumnProfile:
        dtype = self._dtype()
        counts = np.empty(0, dtype=np.int64) if self._keys is None else self._key_counts(dtype)
        n_distinct = None if self._keys is None else len(counts)
        dated = self._typed == {"text"} and self._could_be["date"] and self._says_something
        return ColumnProfile(
            *(self.name, dtype, self.n_rows, self.n_missing, n_distinct, counts),
            is_dated=dated and not self._longest,
            longest=self._longest,
            is_weighted=self._is_weighted,
            known_kind=self._known_kind,
        )

    def _key_counts(self, dtype: str) -> np.ndarray:
        """Counts of distinct values given the dtype: 1 and 1.0 are the same number."""
        assert self._keys is not None
        counts = self._keys.counts[1:]
        if "text" in self._typed and dtype in ("integer", "float", "boolean"):
            keys = field_keys(Field(name=self.name, dtype=dtype), self._keys.keys.values())
            table = pl.DataFrame({"key": keys, "count": counts})
            counts = table.group_by("key").agg(pl.col("count").sum())["count"].to_numpy()
        return np.sort(counts[counts > 0])

    def _dtype(self) -> str:
        said = self._typed - {"empty"}
        if not said or self.n_rows == self.n_missing:
            return "string"
        if said == {"text"}:
            could = self._could_be
            if not self._says_something:
                return "string"
            if could["boolean"]:
                return "boolean"
            if could["whole"] and could["number"]:
                return "integer"
            if could["number"]:
                return "float"
            return "time" if could["clock"] else "string"
        if said <= {"integer", "float"}:
            return "integer" if self._could_be["whole"] else "float"
        return said.pop() if len(said) == 1 else "string"


def _typed(column: pl.Series) -> str:
    dtype = column.dtype
    if dtype == pl.Null:
        return "empty"
    if dtype == pl.String:
        return "text"
    if dtype == pl.Boolean:
        return "boolean"
    if dtype.is_float() or dtype.is_decimal():
        return "float"
    if dtype.is_integer():
        return "integer"
    if dtype == pl.Date:
        return "date"
    if isinstance(dtype, pl.Datetime):
        return "time"
    return "string"


def parsed_kind(kind: str | None) -> tuple[str | None, str | None]:
    """Split a kind that was asked for: "list:|" is "list" and its separator, others have none."""
    word, colon, separator = (kind or "").partition(":")
    if word != "list" or not colon:
        return kind, None
    if not separator:
        raise SchemaError("kind 'list:' lacks the text between values, such as list:|")
    return word, separator


def profile(
    source: Source,
    *,
    columns: Iterable[str] | None = None,
    kinds: Mapping[str, str] | None = None,
    show: bool | None = False,
) -> list[ColumnProfile]:
    """Every column's profile, from one pass over the source; `kinds` says which texts are lists."""
    wanted = list(source.columns if columns is None else columns)
    return [look.finish() for look in looks_at(source, wanted, kinds, show=show)]


def looks_at(
    source: Source,
    columns: Sequence[str],
    kinds: Mapping[str, str] | None = None,
    *,
    show: bool | None = False,
) -> list[_Look]:
    """A look at every column; looks at parts of a table can be merged with `absorb`."""
    kinds = dict(kinds or {})
    looks = [_Look(name, source.kinds.get(name), kinds.get(name)) for name in columns]
    with progress("looking", source.total, show=show) as tell:
        for chunk in ahead(source.chunks()):
            in_parallel(partial(_Look.add, chunk=chunk), looks)
            tell(chunk.done, f"{looks[0].n_rows:,} rows" if looks else "")
    return looks
