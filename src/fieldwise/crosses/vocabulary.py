"""A vocabulary with crosses: the codes of a table's fields, and the evidence.

Crosses use all categories. In the model's own fields, categories seen less than `floor` times share
the rare row: evidence knows more about them.

Evidence enters the model as fields of its own, two per cross (and output): a linear one, which
every category's model can weigh, and one of bins. `extras`, which only a function of the field-wise
scores reads (evidence, the logarithm of its weight, the numbers of numeric categories), come after
the values of fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from ..data.chunks import Chunk
from ..data.numbers import Histogram, bin_of
from ..data.schema import Field, Schema, slot_positions
from ..data.vocabulary import ENTRIES, FieldVocabulary, Vocabulary, bin_entries
from .evidence import Evidence, Fitted

__all__ = ["CrossedVocabulary", "evidence_fields", "parents_of", "unlike"]

BINS = 32


class CrossedVocabulary(Vocabulary):
    """`base` is the vocabulary of the table's own fields, `evidence` that of their crosses. `own`
    are the fields made of evidence: linear ones, then as many binned ones, in the order of crosses
    and targets; empty if evidence is only for `extras`."""

    def __init__(
        self,
        base: Vocabulary,
        evidence: Evidence,
        *,
        floor: int = 1,
        own: Sequence[FieldVocabulary] = (),
        with_extras: bool = False,
    ) -> None:
        self.base, self.evidence = base, evidence
        self.floor, self.with_extras = floor, with_extras
        self.own = tuple(own)
        coarse = [_coarser(words, floor) for words in base.fields]
        super().__init__(base.schema, [*coarse, *own])
        self._sizes = np.repeat([words.size for words in coarse], base.schema.slots)
        self.numbers = _numbers(base) if with_extras else {}

    def with_evidence(self, evidence: Evidence) -> CrossedVocabulary:
        """A copy with other evidence."""
        return self._with(self.base, evidence)

    def _with(
        self, base: Vocabulary, evidence: Evidence, own: Sequence[FieldVocabulary] | None = None
    ) -> CrossedVocabulary:
        """A copy with the same settings; `own` are this one's unless given."""
        own = self.own if own is None else own
        about: dict[str, Any] = {"floor": self.floor, "with_extras": self.with_extras}
        return CrossedVocabulary(base, evidence, own=own, **about)

    @property
    def about(self) -> dict[str, Any]:
        """What a model's header stores of it."""
        mean = self.evidence.mean
        return {
            "crosses": [list(cross) for cross in self.evidence.crosses],
            "shrink": self.evidence.shrink.tolist(),
            "floor": self.floor,
            "with_extras": self.with_extras,
            **({} if mean is None else {"mean": mean.tolist()}),
        }

    @classmethod
    def loaded(
        cls, schema: Schema, content: bytes, crosses: bytes, about: Mapping[str, Any]
    ) -> CrossedVocabulary:
        whole = Vocabulary.from_bytes(schema, content)
        plain = [f for f in whole.fields if not f.field.cross]
        base = Vocabulary(replace(schema, fields=tuple(f.field for f in plain)), plain)
        mean = np.array(about["mean"]) if "mean" in about else None
        evidence = Evidence.from_bytes(about["crosses"], np.array(about["shrink"]), crosses, mean)
        own = [f for f in whole.fields if f.field.cross]
        return cls(base, evidence, floor=about["floor"], own=own, with_extras=about["with_extras"])

    def grown(self, base: Vocabulary) -> tuple[CrossedVocabulary, dict[int, np.ndarray]]:
        """A copy for `base`, which has grown from this one's base, and for the slots that were
        renumbered the new code of every code of `base`: categories with a row keep it, then come
        those now seen often enough for one, then the others."""
        fields: list[FieldVocabulary] = []
        codes_of: dict[int, np.ndarray] = {}
        places = slot_positions(base.schema.slots)
        for words, mine, place in zip(base.fields, self.fields, places, strict=False):
            if words.field.is_counted and self.floor > 1:
                order = _rows_first(words, mine.size, self.floor)
                codes_of |= dict.fromkeys(place, order)
                code = pl.Series("code", order[words.entries["code"].to_numpy()], dtype=pl.Int32)
                words = replace(words, entries=words.entries.with_columns(code))
            fields.append(words)
        grown = Vocabulary(base.schema, fields)
        return self._with(grown, self.evidence.recoded(codes_of)), codes_of

    def with_category(self, j: int, key: str | None, count: int) -> CrossedVocabulary:
        old = self.base.fields[j]
        known = old.entries.filter(pl.col("category").eq_missing(pl.lit(key, pl.String)))
        # Raise its count to `floor`, or it would have no row.
        count = max(count, self.floor - int(known["count"].sum()))
        fields = [*self.base.fields]
        fields[j] = old.counted(key, count, code=None if known["code"].max() else old.size)
        return self.grown(Vocabulary(self.base.schema, fields))[0]

    def lenient(self) -> CrossedVocabulary:
        return self._with(self.base.lenient(), self.evidence)

    def learned_more(
        self, evidence: Evidence, counts: np.ndarray, keep: float
    ) -> CrossedVocabulary:
        """A copy with other evidence. The counts of the fields made of evidence are multiplied by
        `keep`, and `counts`, for all their codes one field after the other, are added."""
        own, at = [], 0
        for words in self.own:
            seen = counts[at : at + words.size][words.entries["code"].to_numpy()]
            total = (pl.col("count") * keep).round() + pl.Series("seen", seen)
            entries = words.entries.with_columns(total.cast(pl.Int64).alias("count"))
            own.append(replace(words, entries=entries))
            at += words.size
        return self._with(self.base, evidence, own)

    def to_bytes(self) -> bytes:
        return Vocabulary(self.schema, [*self.base.fields, *self.own]).to_bytes()

    def encode(
        self, chunk: Chunk, n_unseen: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        codes, values = self.base.encode(chunk, n_unseen)
        return self.extended(codes, values, self.evidence.of(codes))

    @property
    def extra_parents(self) -> list[tuple[str, ...]]:
        """The fields that each of the extras comes from."""
        if not self.with_extras:
            return []
        evidence = [parents for parents in self.parents for _ in range(self.evidence.n_targets)]
        return [*evidence, *self.parents, *((name,) for name in self.numbers)]

    @property
    def parents(self) -> list[tuple[str, ...]]:
        """The fields of every cross."""
        return parents_of(self.base.schema, self.evidence.crosses)

    def extended(
        self,
        codes: np.ndarray,
        values: np.ndarray,
        found: Fitted,
    ) -> tuple[np.ndarray, np.ndarray]:
        """codes (n, S) and values of the table's own fields -> those of all fields, then extras"""
        n = len(codes)
        flat = found.evidence.reshape(n, -1)
        coarse = np.where(codes >= self._sizes, 0, codes)
        own, numbers = self._as_fields(flat)
        parts = [values, numbers]
        if self.with_extras:
            parts += [flat, np.log1p(found.seen)]
            parts += [known[codes[:, [s]]] for s, known in self.numbers.values()]
        return (
            np.concatenate([coarse, own], axis=1).astype(np.int32),
            np.concatenate([np.asarray(p, np.float32) for p in parts], axis=1),
        )

    def _as_fields(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes (n, F) of the fields made of evidence, and the values of the linear ones"""
        if not self.own:
            return np.zeros((len(flat), 0), np.int32), np.zeros((len(flat), 0), np.float32)
        from . import _kernels

        codes, values = _kernels.as_fields(flat, *self._fields)
        return codes, values[:, [words.field.is_linear for words in self.own]]

    @cached_property
    def _fields(self) -> tuple[np.ndarray, ...]:
        """What `_kernels.as_fields` takes besides numbers."""
        own = [words.scaling if words.field.is_linear else (0.0, 0.0) for words in self.own]
        center, scale = np.ascontiguousarray(np.transpose(own), np.float64)
        edges = [np.array(words.field.edges or (), np.float64) for words in self.own]
        ends = np.cumsum([0, *map(len, edges)])
        return center, scale, np.concatenate(edges), ends


def parents_of(schema: Schema, crosses: Sequence[Sequence[int]]) -> list[tuple[str, ...]]:
    """The field names of every cross of slots."""
    places = zip(schema.names, slot_positions(schema.slots), strict=True)
    names = {slot: name for name, place in places for slot in place}
    return [tuple(names[slot] for slot in cross) for cross in crosses]


def evidence_fields(
    schema: Schema, crosses: Sequence[Sequence[int]], fitted: Sequence[Fitted]
) -> list[FieldVocabulary]:
    """The fields through which evidence enters a model, measured on its training rows."""
    flat = np.concatenate([f.evidence.reshape(len(f.evidence), -1) for f in fitted])
    n_targets = flat.shape[1] // max(len(crosses), 1)
    names = [
        (" x ".join(parents) + (f" ({t + 1})" if n_targets > 1 else ""), parents)
        for parents in parents_of(schema, crosses)
        for t in range(n_targets)
    ]
    made = [*_linear_fields(names, flat), *_binned_fields(names, flat)]
    taken = set(schema.names)
    return [replace(f, field=replace(f.field, name=unlike(f.field.name, taken))) for f in made]


def _linear_fields(
    names: Sequence[tuple[str, tuple[str, ...]]], flat: np.ndarray
) -> Iterator[FieldVocabulary]:
    for k, (name, parents) in enumerate(names):
        number = flat[:, k].astype(np.float64)
        center, spread = float(number.mean()), float(number.std())
        field = Field(
            name=name, kind="numeric", dtype="float", binning="linear", cross=parents,
            center=center, scale=spread or 1.0,
        )  # fmt: skip
        entries = {"category": ["(value)"], "code": [0], "count": [len(number)]}
        yield FieldVocabulary(field, pl.DataFrame(entries, schema=ENTRIES))


def _binned_fields(
    names: Sequence[tuple[str, tuple[str, ...]]], flat: np.ndarray
) -> Iterator[FieldVocabulary]:
    for k, (name, parents) in enumerate(names):
        number = flat[:, k].astype(np.float64)
        histogram = Histogram()
        histogram.add(number)
        edges = histogram.edges(BINS)
        field = Field(
            name=f"{name} in bins", kind="numeric", dtype="float", binning="edges", edges=edges,
            cross=parents,
        )  # fmt: skip
        counts = np.bincount(bin_of(number, edges), minlength=len(edges) + 1)
        yield FieldVocabulary(field, bin_entries(field, counts, None))


def unlike(name: str, taken: set[str]) -> str:
    """The name, with primes appended until it is not in `taken`; adds it there."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _coarser(words: FieldVocabulary, floor: int) -> FieldVocabulary:
    """A copy with rows only for categories seen at least `floor` times. Codes stay: they are in
    order of falling counts, so the others come last. If rows were appended later, rarer categories
    may come before the last frequent one, and keep their rows."""
    if floor <= 1 or not words.field.is_counted:
        return words
    last = pl.col("code").filter(pl.col("count") >= floor).max().fill_null(0)
    code = pl.when(pl.col("code") > last).then(0).otherwise(pl.col("code"))
    return replace(words, entries=words.entries.with_columns(code.cast(pl.Int32).alias("code")))


def _rows_first(words: FieldVocabulary, n_rows: int, floor: int) -> np.ndarray:
    """(size,) the new code of every code: the first n_rows stay, then come categories seen at least
    `floor` times, then the others"""
    enough = words.counts()[n_rows:] >= floor
    order = n_rows + np.argsort(~enough, kind="stable")
    out = np.arange(words.size, dtype=np.int32)
    out[order] = np.arange(n_rows, words.size)
    return out


def _numbers(words: Vocabulary) -> dict[str, tuple[int, np.ndarray]]:
    """For every field whose categories are numbers, its slot and the number of each code: its value
    or its bin's position. Rare, missing and unseen (the last) have NaN."""
    out = {}
    for f, place in zip(words.fields, slot_positions(words.schema.slots), strict=True):
        field = f.field
        if field.is_list or field.is_linear or field.dtype not in ("integer", "float"):
            continue
        known = np.full(f.size + 1, np.nan, np.float32)
        if field.is_binned:
            n_bins = len(field.edges or ()) + 1
            known[1 : 1 + n_bins] = np.arange(n_bins)
        else:
            text = pl.Series(f.labels()[1:], dtype=pl.String)
            known[1:-1] = text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        out[field.name] = place.start, known
    return out
