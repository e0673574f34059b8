"""A look at every column of a table, in one pass: what it holds, and what it most likely means.

`profile` measures, `infer_schema` decides. The rules (each guess can be overridden):

- text, truth values, categoricals: category
- whole numbers, also as floats or as text: category where values repeat (distinct at most n/4),
  else numeric
- other numbers: numeric
- dates and times, also ISO text with a time of day: calendar fields (date, weekday, hour)
- lists: several categories a row; so is text where kind "list:|" says how it is cut
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from ..errors import DataError, SchemaError
from ..progress import progress
from .chunks import Chunk, Source, ahead, in_parallel
from .keys import Keys
from .lists import flat_lists, holds_lists
from .schema import Field, Schema, Target, check_names, check_settings, names_of
from .values import field_keys

__all__ = ["ColumnProfile", "infer_schema", "looks_at", "profile"]

# Distinct fractions and times are not counted past this many.
FRACTIONS = 1 << 16
FINE_BINS = 256  # of a number at its finer resolution
WHOLE = r"^\s*[+-]?(0|[1-9][0-9]*)(\.0*)?\s*$"  # 007 is a name, not a number
DATE = r"^\d{4}-\d{2}-\d{2}"
CLOCK = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}"
KIND_WORDS = ("category", "numeric", "time", "quantile", "log2", "linear", "list")


@dataclass(frozen=True)
class ColumnProfile:
    """What one column holds. `dtype` is string, integer, float, boolean, date or time."""

    name: str
    dtype: str
    n_rows: int
    n_missing: int
    n_distinct: int | None  # None: too many to count, and numeric
    counts: np.ndarray  # of the distinct values, missing aside; empty where not counted
    is_dated: bool = False  # every value begins with an ISO date
    longest: int = 0  # of lists, the most values; what is said of values is of those in lists
    is_weighted: bool = False  # the values in lists carry weights
    known_kind: str | None = None  # what the format says it is

    @property
    def kind(self) -> str:
        """category, numeric, time or list"""
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
        """The share of values that are seen fewer than `min_count` times."""
        n_values = max(self.n_rows, int(self.counts.sum()) + self.n_missing)
        return float(self.counts[self.counts < min_count].sum()) / n_values


class _Look:
    """Gathers one column's profile."""

    def __init__(self, name: str, known_kind: str | None, kind: str | None) -> None:
        self.name = name
        self._known_kind = known_kind
        word, separator = _parsed(kind)
        self._list = Field(name=name, kind="list", separator=separator) if word == "list" else None
        self._longest, self._is_weighted = 0, False
        self.n_rows = self.n_missing = 0
        self._keys: Keys | None = Keys(Field(name=name))
        self._counts = np.zeros(1, dtype=np.int64)
        self._typed: set[str] = set()  # what typed columns say of themselves
        self._seen = 1
        self._could_be = dict.fromkeys(("whole", "number", "boolean", "date", "clock"), True)
        self._says_something = False  # a text that is not blank

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
        ids = self._keys.ids(chunk)
        counts = np.bincount(ids, minlength=max(self._keys.size, len(self._counts)))
        self.n_missing += int(counts[0])
        counts[: len(self._counts)] += self._counts
        self._counts = counts
        if self._keys.size > self._seen:
            fresh = column.filter(pl.Series(ids >= self._seen))
            self._seen = self._keys.size
            self._judge(fresh.unique())
        self._forget_if_many()

    def absorb(self, other: _Look) -> None:
        """Add what another has seen of the same column."""
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
        here = self._keys.numbered(other._keys)
        counts = np.zeros(max(self._keys.size, len(self._counts)), dtype=np.int64)
        counts[: len(self._counts)] = self._counts
        np.add.at(counts, here[: len(other._counts)], other._counts)
        self._counts, self._seen = counts, self._keys.size
        self._forget_if_many()

    def _forget_if_many(self) -> None:
        fractions = self._could_be["number"] and not self._could_be["whole"]
        many = "time" in self._typed or (fractions and bool(self._typed & {"float", "text"}))
        if many and self._keys is not None and self._keys.size > FRACTIONS:
            self._keys = None

    def _judge(self, fresh: pl.Series) -> None:
        """What the values seen so far could all be."""
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
        """Counts of the values that differ once it is known what they are: 1 and 1.0 do not."""
        assert self._keys is not None
        counts = self._counts[1:]
        if "text" in self._typed and dtype in ("integer", "float", "boolean"):
            keys = field_keys(Field(name=self.name, dtype=dtype), self._keys.values())
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


def _parsed(kind: str | None) -> tuple[str | None, str | None]:
    """The word of a kind and, of "list:|", the separator."""
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
    """Every column's profile, from one pass over the source; `kinds` says which text is lists."""
    wanted = list(source.columns if columns is None else columns)
    return [look.finish() for look in looks_at(source, wanted, kinds, show=show)]


def looks_at(
    source: Source,
    columns: Sequence[str],
    kinds: Mapping[str, str] | None = None,
    *,
    show: bool | None = False,
) -> list[_Look]:
    """A look at every column; those at parts of a table can be added up."""
    kinds = dict(kinds or {})
    looks = [_Look(name, source.kinds.get(name), kinds.get(name)) for name in columns]
    with progress("looking", source.total, show=show) as tell:
        for chunk in ahead(source.chunks()):
            in_parallel(partial(_Look.add, chunk=chunk), looks)
            tell(chunk.done, f"{looks[0].n_rows:,} rows" if looks else "")
    return looks


def infer_schema(
    profiles: Iterable[ColumnProfile],
    *,
    target: str | Sequence[str] | None = None,
    trials: str | None = None,
    weight: str | None = None,
    drop: Iterable[str] = (),
    kinds: Mapping[str, str] | None = None,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    resolutions: bool = False,
    **settings: Any,
) -> Schema:
    """Fields for every column but target, trials, weight and drop.

    `kinds` overrides a guess: category, numeric, time, a binning (quantile, log2, linear), or for
    text that holds several values "list:" and what is between them.
    `settings` (min_count, unseen, n_bins, pooling, max_values) hold for all fields, `fields` for
    the one named. With `resolutions` a number cut into bins is also a field of finer bins, and of
    its values where they are whole and repeat.
    """
    by_name = {p.name: p for p in profiles}
    kinds, drop = dict(kinds or {}), list(drop)
    check_names(kinds, by_name, "column in kinds")
    check_names(drop, by_name, "column in drop")
    targets = names_of(target)
    check_names(targets, by_name, "target")
    if trials is not None and len(targets) != 1:
        raise SchemaError(f"trials={trials!r} goes with one target, the column of successes")
    for role, name in (("weight", weight), ("trials", trials)):
        if name in kinds:
            raise SchemaError(f"column {name!r} is the {role}; it has no kind")
        check_names([name] if name is not None else [], by_name, role)
    check_settings(settings)
    own = {name: dict(v) for name, v in (fields or {}).items()}
    found: list[Field] = []
    for name, column in by_name.items():
        if name not in (*targets, trials, weight) and name not in drop:
            kind = kinds.get(name) or ("numeric" if "edges" in own.get(name, {}) else None)
            fresh = _fields(column, kind, settings)
            found += [*fresh, *_finer(fresh[0], column)] if resolutions else fresh
    check_names(own, [f.name for f in found], "field")
    if not found:
        raise SchemaError(
            f"no column is left to learn from besides the target; the table has "
            f"{', '.join(by_name)}"
        )
    return Schema(
        fields=tuple(_changed(f, own.get(f.name, {})) for f in found),
        targets=tuple(_target(by_name[name], kinds.get(name), trials) for name in targets),
        weight=weight,
        dropped=tuple(drop),
    )


def _changed(field: Field, settings: dict[str, Any]) -> Field:
    if "edges" in settings:
        settings = {"binning": "edges", **settings}
    try:
        return replace(field, **settings)
    except TypeError as error:
        raise SchemaError(f"field {field.name!r}: {error}") from error


def _fields(column: ColumnProfile, kind: str | None, settings: dict[str, Any]) -> list[Field]:
    name = column.name
    kind, separator = _parsed(kind)
    if kind is not None and kind not in KIND_WORDS:
        raise SchemaError(f"column {name!r}: kind {kind!r} is not one of {', '.join(KIND_WORDS)}")
    if column.n_missing == column.n_rows:
        raise SchemaError(f"column {name!r} has no value in any row; drop it: drop=[{name!r}]")
    kind = kind or column.kind
    if (kind == "list") != (column.longest > 0):
        what = "one value a row; 'list:|' cuts text at every |" if kind == "list" else "lists"
        raise SchemaError(f"column {name!r} is asked to be {kind!r} but holds {what}")
    dtype = column.dtype if column.dtype in ("integer", "float", "boolean") else "string"
    if kind == "list":
        if column.is_weighted:
            settings = {"pooling": "sum", **settings}
        return [Field(name=name, kind=kind, dtype=dtype, separator=separator, **settings)]
    if kind == "time":
        if column.dtype not in ("date", "time") and not column.is_dated:
            raise SchemaError(
                f"column {name!r} is asked to be a time but holds {column.dtype} values that do "
                "not all begin with a date such as 2024-05-31"
            )
        base = Field(name=name, **settings)
        clock = column.dtype == "time"
        parts = ("date", "weekday", "hour") if clock else ("date", "weekday")
        return [
            replace(
                base,
                name=name if part == "date" else f"{name}.{part}",
                column=name,
                part=part,
                dtype="string" if part == "date" else "integer",
            )
            for part in parts
        ]
    if kind == "category":
        return [Field(name=name, dtype=dtype, **settings)]
    if dtype == "string":
        raise SchemaError(
            f"column {name!r} is asked to be numeric but holds {column.dtype} values "
            "that are not all numbers"
        )
    if kind == "log2" and column.dtype == "boolean":
        raise SchemaError(f"column {name!r} holds truth values; the log rule needs numbers")
    binning = None if kind == "numeric" else kind
    return [Field(name=name, kind="numeric", binning=binning, dtype="float", **settings)]


def _finer(field: Field, column: ColumnProfile) -> list[Field]:
    """The same numbers at other resolutions."""
    if field.binning != "quantile":
        return []
    few = column.n_distinct is not None and column.n_distinct <= field.n_bins
    fine = replace(field, name=f"{field.name}.fine", column=field.name, n_bins=FINE_BINS)
    found = [] if few or field.n_bins >= FINE_BINS else [fine]
    if column.dtype == "integer" and column.n_distinct and 2 * column.n_distinct <= column.n_rows:
        value = Field(name=f"{field.name}.value", column=field.name, dtype="integer")
        found.append(replace(value, min_count=field.min_count, unseen=field.unseen))
    return found


def _target(column: ColumnProfile, kind: str | None, trials: str | None) -> Target:
    """Two values, or words: classes. More numbers than two: a number, unless told otherwise."""
    if column.n_missing:
        raise DataError(
            f"target {column.name!r} is missing in {column.n_missing:,} of {column.n_rows:,} rows; "
            "drop those rows first"
        )
    if column.longest:
        raise SchemaError(f"target {column.name!r} holds lists; a target is one value a row")
    if trials is not None:
        return Target(column=column.name, kind="share", classes=("0", "1"), trials=trials)
    if column.n_distinct == 1:
        raise DataError(f"target {column.name!r} has the same value in every row: nothing to learn")
    dtype = column.dtype if column.dtype in ("integer", "float", "boolean") else "string"
    if kind not in (None, "category", "numeric"):
        raise SchemaError(f"target {column.name!r}: kind {kind!r} is not category or numeric")
    if kind == "numeric" and dtype == "string":
        raise SchemaError(f"target {column.name!r} is asked to be numeric but holds words")
    if kind is None:
        kind = "category" if dtype in ("string", "boolean") or column.n_distinct == 2 else "numeric"
    return Target(
        column=column.name, kind="classes" if kind == "category" else "numeric", dtype=dtype
    )
