"""Learning a vocabulary from chunks of a table, each read once.

Codes are known only after the last row (they depend on counts), so `add` gives each row provisional
numbers: an id for a counted field, the number itself for a numeric one. `finish` fixes the codes
and `settle` turns provisional numbers into them, without reading the table again.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import polars as pl

from ..errors import SchemaError
from .chunks import Chunk, in_parallel
from .keys import KeyCounts
from .lists import MOST_VALUES, check_lengths, flat_lists, slotted
from .numbers import ExactSum, Histogram, bin_of
from .schema import Field, Schema, slot_positions
from .values import linear_numbers, numbers_of
from .vocabulary import ENTRIES, FieldVocabulary, Vocabulary, bin_entries, sort_by_value

__all__ = ["Learner", "Provisional"]


@dataclass
class Provisional:
    """Rows before they have codes: ids (counted fields, n) int32, numbers (numeric fields, n)
    float64, and for every list lengths (n,), ids and weights (all its values).
    """

    ids: np.ndarray
    numbers: np.ndarray
    lists: list[np.ndarray]

    @property
    def arrays(self) -> list[np.ndarray]:
        """All arrays, as `Provisional.of` takes them."""
        return [self.ids, self.numbers, *self.lists]

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray]) -> Provisional:
        return cls(arrays[0], arrays[1], list(arrays[2:]))


class _Counted:
    """Counts the keys of one field."""

    def __init__(self, field: Field, start: FieldVocabulary | None) -> None:
        self.field = field
        self._start = start.entries if start is not None else None
        known = None
        if self._start is not None:
            known = self._start.filter(pl.col("category").is_not_null())["category"]
        self._seen = KeyCounts(field, known)

    def add(self, chunk: Chunk) -> np.ndarray:
        """Count a chunk's keys; returns their ids"""
        return self._seen.add(chunk)

    def absorb(self, other: _Counted) -> np.ndarray:
        """Add what another has seen; returns this one's id for each of its ids"""
        return self._seen.absorb(other._seen)

    def finish(self) -> FieldVocabulary:
        counts = self._seen.counts
        missing = pl.Series("category", [None], dtype=pl.String)
        entries = pl.DataFrame(
            {
                "category": pl.concat([missing, self._seen.keys.values().alias("category")]),
                "id": np.arange(len(counts), dtype=np.int32),
                "count": counts,
                "is_met": counts > 0,
                "code": np.zeros(len(counts), dtype=np.int32),
            }
        )
        if self._start is not None:
            entries = _add_counts(entries, self._start)
        first = 1 + int(entries["code"].to_numpy().max(initial=0))
        entries = entries.filter((pl.col("count") > 0) | (pl.col("code") > 0))
        # A category in no row of these would have a row of the table that nothing trains.
        enough = pl.col("is_met") & (pl.col("count") >= self.field.min_count)
        own = (pl.col("code") == 0) & enough
        fresh = sort_by_value(self.field, entries.filter(own))
        fresh = fresh.with_columns(
            pl.Series("code", np.arange(first, first + fresh.height), dtype=pl.Int32)
        )
        rare = sort_by_value(self.field, entries.filter((pl.col("code") == 0) & ~own))
        entries = pl.concat([entries.filter(pl.col("code") > 0).sort("code"), fresh, rare])
        self._code_of = np.zeros(len(counts), dtype=np.int32)
        self._code_of[entries["id"].to_numpy()] = entries["code"].to_numpy()
        return FieldVocabulary(self.field, entries.select("category", "code", "count"))

    def settle(self, ids: np.ndarray) -> np.ndarray:
        return self._code_of[ids]

    def for_ids(self, here: np.ndarray) -> _Counted:
        """One that settles another's ids; `here` is what `absorb` returned."""
        out = copy(self)
        out._code_of = self._code_of[here]
        return out


class _Lists(_Counted):
    """Counts the values of a list field, and the length of its longest list."""

    def __init__(
        self, field: Field, start: FieldVocabulary | None, *, widens: bool = False
    ) -> None:
        super().__init__(field, start)
        self._most = max(field.max_values or MOST_VALUES, field.n_slots)
        self._advice = "set max_values to take more"
        if start is not None and not widens:
            self._most = field.n_slots
            self._advice = "what was learned before has no room for more; start over"

    def absorb(self, other: _Counted) -> np.ndarray:
        if other.field.n_slots > self.field.n_slots:
            self.field = replace(self.field, n_slots=other.field.n_slots)
        return super().absorb(other)

    def add_lists(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Count a chunk's lists; returns lengths (n,), and ids and weights of all values"""
        found = flat_lists(chunk, self.field)
        check_lengths(chunk, self.field, found.lengths, self._most, self._advice)
        longest = int(found.lengths.max(initial=1))
        if longest > self.field.n_slots:
            self.field = replace(self.field, n_slots=longest)
        ids = self.add(found.items)
        weights = np.ones(len(ids)) if found.weights is None else found.weights
        return found.lengths, ids, weights.astype(np.float32)

    def settle_lists(
        self, lengths: np.ndarray, ids: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return slotted(self.field, lengths, self.settle(ids), weights)


def _add_counts(entries: pl.DataFrame, start: pl.DataFrame) -> pl.DataFrame:
    """`entries` with the counts of `start` added, and its codes."""
    return (
        entries.drop("code")
        .join(start, on="category", how="left", nulls_equal=True)
        .select(
            "category",
            "id",
            pl.col("count") + pl.col("count_right").fill_null(0),
            "is_met",
            pl.col("code").fill_null(0),
        )
    )


def _no_number(field: Field) -> SchemaError:
    return SchemaError(
        f"column {field.column!r} has no numbers (every value is missing); "
        f"drop it: drop=[{field.column!r}]"
    )


class _Binned:
    """Measures a column that is cut into bins: quantiles, or edges already given."""

    def __init__(self, field: Field, start: FieldVocabulary | None) -> None:
        self.field = field
        self._missing, self._had_missing = 0, False
        self._histogram = None if field.edges is not None else Histogram()
        self._counts = np.zeros(len(field.edges or ()) + 1, dtype=np.int64)
        if start is not None:
            counts = start.counts()[1:]
            self._counts += counts[: len(self._counts)]
            self._missing = int(counts[len(self._counts) :].sum())
            self._had_missing = start.missing_code > 0

    def add(self, chunk: Chunk) -> np.ndarray:
        number = numbers_of(chunk, self.field.column)
        missing = np.isnan(number)
        self._missing += int(missing.sum())
        if self._histogram is not None:
            self._histogram.add(number)
        else:
            bins = bin_of(number[~missing], self.field.edges or ())
            self._counts += np.bincount(bins, minlength=len(self._counts))
        return number

    def absorb(self, other: _Binned) -> None:
        self._missing += other._missing
        if self._histogram is not None and other._histogram is not None:
            self._histogram.absorb(other._histogram)
        else:
            self._counts += other._counts

    def finish(self) -> FieldVocabulary:
        if self._histogram is not None:
            if self._histogram.n_distinct == 0:
                raise _no_number(self.field)
            edges = self._histogram.edges(self.field.n_bins)
            self._counts = self._histogram.counts(edges)
            self.field = replace(self.field, edges=edges)
        # A row for missing stays even if its count has decayed to 0.
        has_row = self._missing > 0 or self._had_missing
        entries = bin_entries(self.field, self._counts, self._missing if has_row else None)
        return FieldVocabulary(self.field, entries)

    def settle(self, numbers: np.ndarray) -> np.ndarray:
        code = 1 + bin_of(numbers, self.field.edges or ())
        code[np.isnan(numbers)] = len(self._counts) + 1
        return code.astype(np.int32)


class _Linear:
    """Measures the mean and the spread of a column that is kept as a number."""

    def __init__(self, field: Field, start: FieldVocabulary | None) -> None:
        self.field = field
        self._sum, self._squares = ExactSum(), ExactSum()
        self._seen = np.zeros(2, dtype=np.int64)  # values, missing
        if start is not None:
            self._seen += start.counts()

    def add(self, chunk: Chunk) -> np.ndarray:
        number = linear_numbers(chunk, self.field.column)
        missing = np.isnan(number)
        finite = number[~missing]
        if self.field.center is None:
            self._sum.add(finite)
            self._squares.add_squares(finite)
        self._seen += (len(finite), int(missing.sum()))
        return number

    def absorb(self, other: _Linear) -> None:
        self._sum.absorb(other._sum)
        self._squares.absorb(other._squares)
        self._seen += other._seen

    def finish(self) -> FieldVocabulary:
        if self.field.center is None:
            n = int(self._seen[0])
            if n == 0:
                raise _no_number(self.field)
            mean = self._sum.value() / n
            variance = max(self._squares.value() / n - mean * mean, Fraction(0))
            # The exact root, so that it is the same on every machine.
            scale = isqrt(int(variance * 4**600)) / 2**600 if variance else 0.0
            self.field = replace(self.field, center=float(mean), scale=scale or 1.0)
        entries = {"category": ["(value)", None], "code": [0, 1], "count": self._seen.tolist()}
        return FieldVocabulary(self.field, pl.DataFrame(entries, schema=ENTRIES))

    def settle(self, numbers: np.ndarray) -> np.ndarray:
        return np.isnan(numbers).astype(np.int32)


class Learner:
    """Learns every field of a schema. `start` is a vocabulary to grow: its codes stay, and with
    `widens` its lists may become longer."""

    def __init__(
        self, schema: Schema, start: Vocabulary | None = None, *, widens: bool = False
    ) -> None:
        if start is not None and start.schema.names != schema.names:
            raise SchemaError("the schema and the vocabulary to grow have different fields")
        self.schema = start.schema if start is not None else schema
        olds: Sequence[FieldVocabulary | None] = (
            start.fields if start is not None else [None] * len(schema)
        )
        pairs = zip(self.schema.fields, olds, strict=True)
        self._take([_of(f, old, widens=widens) for f, old in pairs])

    def _take(self, fields: list[_Counted | _Binned | _Linear]) -> None:
        self._fields = fields
        self._lists = [f for f in self._fields if isinstance(f, _Lists)]
        self._plain = [f for f in self._fields if not isinstance(f, _Lists)]
        self._n_ids = sum(isinstance(f, _Counted) for f in self._plain)

    def add(self, chunk: Chunk) -> Provisional:
        n = chunk.frame.height
        ids = np.empty((self._n_ids, n), dtype=np.int32)
        numbers = np.empty((len(self._plain) - self._n_ids, n), dtype=np.float64)
        places = self._places(ids, numbers)

        def work(j: int) -> None:
            places[j][:] = self._plain[j].add(chunk)

        in_parallel(work, range(len(places)))
        lists = [array for f in self._lists for array in f.add_lists(chunk)]
        return Provisional(ids, numbers, lists)

    @property
    def n_arrays(self) -> int:
        """The number of arrays in a `Provisional`."""
        return 2 + 3 * len(self._lists)

    def absorb(self, other: Learner) -> list[np.ndarray | None]:
        """Add what another has learned from other rows; the result is for `settling`."""
        pairs: Any = zip(self._fields, other._fields, strict=True)
        return [mine.absorb(theirs) for mine, theirs in pairs]

    def settling(self, absorbed: Sequence[np.ndarray | None]) -> Learner:
        """After `finish`: a learner that settles the rows of another; `absorbed` is what `absorb`
        returned for it."""
        out = copy(self)
        pairs: Any = zip(self._fields, absorbed, strict=True)
        out._take([f if here is None else f.for_ids(here) for f, here in pairs])
        return out

    def finish(self) -> Vocabulary:
        return Vocabulary(self.schema, in_parallel(lambda f: f.finish(), self._fields))

    def settle(self, rows: Provisional, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """The codes (n, S) and values (n, valued slots) of rows; call `finish` before."""
        schema = vocabulary.schema
        n = len(rows.lists[0]) if rows.lists else max(rows.ids.shape[1], rows.numbers.shape[1])
        codes = np.empty((n, sum(schema.slots)), dtype=np.int32)
        values = np.empty((n, len(schema.valued)), dtype=np.float32)
        plain = iter(self._places(rows.ids, rows.numbers))
        lists = iter(rows.lists)
        k = 0
        for j, place in enumerate(slot_positions(schema.slots)):
            field, known = self._fields[j], vocabulary.fields[j]
            slots, valued = slice(place.start, place.stop), slice(k, k + len(place))
            if isinstance(field, _Lists):
                arrays = (next(lists), next(lists), next(lists))
                codes[:, slots], values[:, valued] = field.settle_lists(*arrays)
            else:
                row = next(plain)
                codes[:, place.start] = field.settle(row)
                if not known.field.is_linear:
                    continue
                values[:, k] = known.scaled(row)
            k += len(place)
        return codes, values

    def _places(self, ids: np.ndarray, numbers: np.ndarray) -> list[np.ndarray]:
        """For each field that is not a list, its row of `ids` or `numbers`."""
        counted, others = iter(ids), iter(numbers)
        return [next(counted if isinstance(f, _Counted) else others) for f in self._plain]


def _of(field: Field, old: FieldVocabulary | None, *, widens: bool) -> _Counted | _Binned | _Linear:
    if field.is_list:
        return _Lists(field, old, widens=widens)
    if field.is_counted:
        return _Counted(field, old)
    return _Linear(field, old) if field.is_linear else _Binned(field, old)
