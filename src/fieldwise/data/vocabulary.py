"""What an encoder learned: for every field its categories, their codes and how often each was seen.

Codes are numbers within a field. Code 0 is the rare row, except in a linear field; -1 is a value
never seen (policy "mean": it scores as the mean of its field's rows).

    counted field   0 rare | 1.. categories by falling count, ties by value (missing among them)
    binned field    0 rare | 1.. bins from low to high | then missing, if it was seen
    linear field    0 the slope, which has a value | 1 missing

A list has the codes of a counted field, several per row, each with a value; code 0 with value 0 is
an empty slot.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from ..errors import DataError, SchemaError, StoreError
from .chunks import UNREADABLE, Chunk, unpacked
from .keys import Keys
from .lists import check_lengths, flat_lists, slotted
from .numbers import bin_labels, bin_of
from .schema import Field, Schema, slot_positions
from .values import linear_numbers, numbers_of

__all__ = [
    "UNSEEN_CODE",
    "FieldVocabulary",
    "Vocabulary",
    "bin_entries",
    "integer_vocabulary",
    "lone",
    "sort_by_value",
]

UNSEEN_CODE = -1
MOST_BYTES = 1 << 28  # of values encoded, after which unseen ones are dropped from the cache

ENTRIES = {"category": pl.String, "code": pl.Int32, "count": pl.Int64}


def sort_by_value(field: Field, entries: pl.DataFrame) -> pl.DataFrame:
    """Entries by falling count, ties by value: whole numbers by size, text by its bytes."""
    number = pl.col("category").cast(pl.Float64, strict=False)
    by_value = [number] if field.dtype in ("integer", "float") else []
    return entries.sort(
        [pl.col("count"), *by_value, pl.col("category")],
        descending=[True, *([False] * (len(by_value) + 1))],
        nulls_last=False,
    )


@dataclass(frozen=True)
class FieldVocabulary:
    """One field's entries: a frame (category, code, count); a null category is missing."""

    field: Field
    entries: pl.DataFrame

    @property
    def size(self) -> int:
        """d_i: how many rows of the table this field owns."""
        if self.field.is_linear:
            return 2
        highest = self.entries["code"].max()
        return 1 + int(highest) if isinstance(highest, int) else 1

    def counts(self) -> np.ndarray:
        """(size,) how often each code was seen in training."""
        out = np.zeros(self.size, dtype=np.int64)
        np.add.at(out, self.entries["code"].to_numpy(), self.entries["count"].to_numpy())
        return out

    def labels(self) -> list[str | None]:
        """A readable label for each code; None is missing."""
        own = ("(value)",) if self.field.is_linear else ("(rare)",)
        out: list[str | None] = [*own, *[None] * (self.size - 1)]
        for category, code, _ in self.entries.filter(pl.col("code") > 0).iter_rows():
            out[code] = category
        return out

    @cached_property
    def own(self) -> pl.DataFrame:
        """The entries that have a row of their own, by code."""
        return self.entries.filter(pl.col("code") > 0).sort("code")

    @property
    def missing_code(self) -> int:
        """The code of a missing value; -1 if training saw none."""
        found = self.entries.filter(pl.col("category").is_null())["code"]
        return int(found[0]) if len(found) else UNSEEN_CODE

    def decode(self, codes: np.ndarray, values: np.ndarray | None) -> pl.Series:
        """Codes back to values; null for missing, rare and unseen.

        A bin becomes its middle (an end bin its edge), a linear field its value.
        """
        codes = np.asarray(codes)
        inside = (codes >= 0) & (codes < self.size)
        if self.field.is_linear:
            center, scale = self.scaling
            known = pl.Series(np.asarray(values, dtype=np.float64) * scale + center)
            return known.set(pl.Series(codes != 0), None).alias(self.field.name)
        index = pl.Series(np.where(inside, codes, 0).astype(np.uint32))
        return self._by_code.gather(index).alias(self.field.name)

    @cached_property
    def _by_code(self) -> pl.Series:
        """What each code decodes to."""
        if self.field.is_binned:
            # Bins fall on 1..b; everything else is null.
            known = pl.Series([None, *self.bin_middles()], dtype=pl.Float64)
            return known.extend_constant(None, self.size - len(known))
        own = self.own["category"].alias("")
        return self._typed(pl.concat([pl.Series("", [None], dtype=pl.String), own]))

    def decode_lists(self, codes: np.ndarray, filled: np.ndarray) -> pl.Series:
        """Codes (n, n_slots), some of them filled, back to lists; null where missing."""
        flat = self.decode(codes[filled], None)
        row = np.nonzero(filled)[0].astype(np.uint32)
        every = pl.DataFrame({"row": np.arange(len(codes), dtype=np.uint32)})
        grouped = pl.DataFrame({"row": row, "item": flat}).group_by("row").agg("item")
        lists = every.join(grouped, on="row", how="left", maintain_order="left")["item"]
        missing = (codes[:, 0] == self.missing_code) & (filled.sum(axis=1) == 1)
        if self.missing_code < 1:  # missing has no row of its own
            missing[:] = False
        return lists.set(pl.Series(missing), None).alias(self.field.name)

    def _typed(self, keys: pl.Series) -> pl.Series:
        if self.field.dtype == "integer":
            whole = keys.cast(pl.Int64, strict=False)
            longer = keys.filter(whole.is_null()).str.contains(r"^-?[0-9]+$").any()
            return keys.cast(pl.Int128, strict=False) if longer else whole
        if self.field.dtype == "float":
            return keys.cast(pl.Float64, strict=False)
        if self.field.dtype == "boolean":
            return keys.replace_strict(
                {"true": True, "false": False}, default=None, return_dtype=pl.Boolean
            )
        return keys

    def bin_middles(self) -> list[float]:
        edges = self.field.edges or ()
        if not edges:
            return [0.0]
        inner = [(a + b) / 2 for a, b in pairwise(edges)]
        return [float(np.nextafter(edges[0], -np.inf)), *inner, edges[-1]]

    def scaled(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers as values of a linear field, float32; 1 where missing, for the row of missing."""
        center, scale = self.scaling
        largest = np.finfo(np.float32).max
        value = np.clip((numbers - center) / scale, -largest, largest)
        return np.where(np.isnan(numbers), 1.0, value).astype(np.float32)

    def counted(self, key: str | None, count: int, *, code: int | None = None) -> FieldVocabulary:
        """A copy in which a category was seen `count` times more; with `code` this becomes its
        code."""
        key_is = pl.col("category").eq_missing(pl.lit(key, pl.String))
        if self.entries.filter(key_is).is_empty():
            one = {"category": [key], "code": [code or 0], "count": [count]}
            return replace(self, entries=pl.concat([self.entries, pl.DataFrame(one, ENTRIES)]))
        own = pl.col("code") if code is None else pl.lit(code, pl.Int32)
        changed = self.entries.with_columns(
            pl.when(key_is).then(own).otherwise(pl.col("code")).alias("code"),
            pl.when(key_is).then(pl.col("count") + count).otherwise(pl.col("count")).alias("count"),
        )
        return replace(self, entries=changed)

    def alone(self) -> Vocabulary:
        """A vocabulary of this field only."""
        return Vocabulary(Schema(fields=(self.field,)), [self])

    @property
    def scaling(self) -> tuple[float, float]:
        """The center and scale of a linear field"""
        if self.field.center is None or self.field.scale is None:
            return 0.0, 1.0
        return self.field.center, self.field.scale


class _Coder:
    """Encodes one field with its vocabulary. Builds a dictionary, so make it once."""

    def __init__(self, vocabulary: FieldVocabulary) -> None:
        self.vocabulary = vocabulary
        self.field = vocabulary.field
        self._missing = vocabulary.missing_code
        if self.field.is_counted:
            known = vocabulary.entries.filter(pl.col("category").is_not_null())
            self._known = known["category"]
            codes = known["code"].to_numpy()
            self._code_of = np.concatenate([[self._missing], codes]).astype(np.int32)
            self._keys = Keys(self.field, self._known)

    def __call__(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Codes (n, n_slots) int32, values (n, n_slots) float32 if the field has any, and which
        rows hold a value never seen, or a list longer than any seen."""
        if self.field.is_list:
            return self._lists(chunk)
        codes, values = self._plain(chunk)
        unseen = codes == UNSEEN_CODE
        codes = self._settle(codes, unseen, chunk)
        return codes[:, None], None if values is None else values[:, None], unseen

    def _plain(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray | None]:
        if self.field.is_counted:
            return self._counted(chunk), None
        if self.field.is_linear:
            number = linear_numbers(chunk, self.field.column)
            return np.isnan(number).astype(np.int32), self.vocabulary.scaled(number)
        number = numbers_of(chunk, self.field.column)
        missing = np.isnan(number)
        code = 1 + bin_of(number, self.field.edges or ())
        code[missing] = self._missing
        return code.astype(np.int32), None

    def _lists(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = flat_lists(chunk, self.field)
        n_slots = self.field.n_slots
        if self.field.unseen == "error":
            advice = "set unseen='mean' or 'rare' to leave the others out"
            check_lengths(chunk, self.field, found.lengths, n_slots, advice)
        flat = self._counted(found.items)
        flat = self._settle(flat, flat == UNSEEN_CODE, found.items)
        codes, values = slotted(self.field, found.lengths, flat, found.weights)
        unseen = (codes == UNSEEN_CODE).any(axis=1) | (found.lengths > n_slots)
        return codes, values, unseen

    def _counted(self, chunk: Chunk) -> np.ndarray:
        keys = self._keys  # other threads may be here, and replace it
        if keys.size > 2 * len(self._code_of) + (1 << 20) or keys.n_bytes > MOST_BYTES:
            self._keys = keys = Keys(self.field, self._known)  # forget the unseen
        ids = keys.ids(chunk)
        if ids.max(initial=0) >= len(self._code_of):
            ids = np.where(ids < len(self._code_of), ids, len(self._code_of))
            return np.append(self._code_of, np.int32(UNSEEN_CODE))[ids]
        return self._code_of[ids]

    def _settle(self, codes: np.ndarray, unseen: np.ndarray, chunk: Chunk) -> np.ndarray:
        """The codes, with the field's policy for unseen values applied."""
        if self.field.unseen == "mean" or not unseen.any():
            return codes
        if self.field.unseen == "error":
            row = int(np.argmax(unseen))
            raise DataError(
                f"{chunk.locate(row)}: field {self.field.name!r} holds "
                f"{chunk.frame[self.field.column][row]!r}, never seen in training; "
                "set unseen='mean' or 'rare' to let it through"
            )
        return np.where(unseen, np.int32(0), codes)


class Vocabulary:
    """Every field's vocabulary; encodes and decodes frames."""

    evidence: Any = None  # of crosses, if there are any (fieldwise.crosses)

    def __init__(self, schema: Schema, fields: Sequence[FieldVocabulary]) -> None:
        self.schema = replace(schema, fields=tuple(f.field for f in fields))
        self.fields = tuple(fields)
        self._coders: list[_Coder] | None = None

    def __getitem__(self, name: str) -> FieldVocabulary:
        return self.fields[self.schema.names.index(self.schema[name].name)]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_coders": None}

    @property
    def sizes(self) -> list[int]:
        """d_1 .. d_m"""
        return [f.size for f in self.fields]

    def counts(self) -> np.ndarray:
        """(d,) how often each category of every field was seen in training"""
        return np.concatenate([f.counts() for f in self.fields])

    def encode(
        self, chunk: Chunk, n_unseen: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes (n, S) int32 and values (n, valued slots) float32 of a chunk.

        `n_unseen` (m,) is increased by the rows in which a field has what training never saw.
        """
        if self._coders is None:
            self._coders = [_Coder(f) for f in self.fields]
        n = chunk.frame.height
        codes = np.empty((n, sum(self.schema.slots)), dtype=np.int32)
        values = np.empty((n, len(self.schema.valued)), dtype=np.float32)
        k = 0
        for j, place in enumerate(slot_positions(self.schema.slots)):
            found, value, unseen = self._coders[j](chunk)
            codes[:, place.start : place.stop] = found
            if n_unseen is not None:
                n_unseen[j] += np.count_nonzero(unseen)
            if value is not None:
                values[:, k : k + len(place)] = value
                k += len(place)
        return codes, values

    def decode(self, codes: np.ndarray, values: np.ndarray | None = None) -> pl.DataFrame:
        """Codes back to a frame of one column per field; see FieldVocabulary.decode. Without
        values a linear field is NaN, and codes below -1 are the empty slots of lists."""
        columns, k = [], 0
        for f, place in zip(self.fields, slot_positions(self.schema.slots), strict=True):
            own, value = codes[:, place.start : place.stop], None
            if f.field.is_linear or f.field.is_list:
                if values is not None:
                    value = values[:, k : k + len(place)]
                k += len(place)
            if f.field.is_list:
                filled = own >= UNSEEN_CODE if value is None else value != 0
                columns.append(f.decode_lists(own, filled))
                continue
            if f.field.is_linear and value is None:
                value = np.full((len(codes), 1), np.nan)
            columns.append(f.decode(own[:, 0], None if value is None else value[:, 0]))
        return pl.DataFrame(columns)

    def with_category(self, j: int, key: str | None, count: int) -> Vocabulary:
        """A copy in which a category of field j was seen `count` times more, and has a row of its
        own, the field's last."""
        old = self.fields[j]
        fields = [*self.fields]
        fields[j] = old.counted(key, count, code=old.size)
        out = Vocabulary(self.schema, fields)
        if self._coders is not None:
            out._coders = [*self._coders]
            out._coders[j] = _Coder(fields[j])
        return out

    def lenient(self) -> Vocabulary:
        """A copy in which unseen values are no error in any field (unseen='mean')."""
        mean = [replace(f, field=replace(f.field, unseen="mean")) for f in self.fields]
        return Vocabulary(self.schema, mean)

    def to_bytes(self) -> bytes:
        """Parquet: field, category, code, count."""
        frames = [
            f.entries.select(pl.lit(f.field.name).alias("field"), *ENTRIES) for f in self.fields
        ]
        out = io.BytesIO()
        pl.concat(frames).write_parquet(out, compression="zstd", statistics=False)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, schema: Schema, content: bytes) -> Vocabulary:
        try:
            frame = unpacked(content)
            frame = frame.select("field", *(pl.col(k).cast(v) for k, v in ENTRIES.items()))
        except (*UNREADABLE, ValueError) as error:
            raise StoreError(f"the vocabulary is damaged: {error}") from error
        parts = {
            k[0]: v.drop("field") for k, v in frame.partition_by("field", as_dict=True).items()
        }
        empty = pl.DataFrame(schema=ENTRIES)
        extra = set(parts) - set(schema.names)
        if extra:
            names = ", ".join(sorted(map(repr, extra)))
            raise SchemaError(f"the vocabulary has fields that the schema lacks: {names}")
        fields = [FieldVocabulary(f, parts.get(f.name, empty)) for f in schema.fields]
        for f in fields:
            _check_entries(f)
        return cls(schema, fields)


def _check_entries(words: FieldVocabulary) -> None:
    """Raise unless every code but 0 belongs to one category; other code relies on it."""
    field, names = words.field, words.entries["category"]
    codes, counts = (words.entries[name] for name in ("code", "count"))
    own = codes.filter(codes > 0).to_numpy()
    n_bins = len(field.edges or ()) + 1
    most = 2 if field.is_linear else 1 << 31
    wanted = range(n_bins, n_bins + 2) if field.is_binned else range(most)
    sound = (
        not (codes.has_nulls() or counts.has_nulls() or (codes < 0).any() or (counts < 0).any())
        and len(own) in wanted
        and own.max(initial=0) == len(own)
        and np.bincount(own).max(initial=0) <= 1
        and (field.is_binned or names.n_unique() == len(names))
    )
    if not sound:
        raise StoreError(
            f"the vocabulary is damaged: the categories of field {field.name!r} do not have the "
            "codes 1, 2, ..., each once"
        )


def lone(field: Field, key: str | None) -> Vocabulary:
    """A vocabulary of one field with one category, code 1; all else is unseen."""
    field = replace(field, unseen="mean")
    entries = pl.DataFrame({"category": [key], "code": [1], "count": [1]}, schema=ENTRIES)
    return FieldVocabulary(field, entries).alone()


def bin_entries(field: Field, counts: np.ndarray, n_missing: int | None) -> pl.DataFrame:
    """The entries of a binned field: its bins, then missing unless `n_missing` is None."""
    labels: list[str | None] = [*bin_labels(field.edges or ())]
    codes = list(range(1, len(labels) + 1))
    numbers = [int(c) for c in counts]
    if n_missing is not None:
        labels, codes, numbers = [*labels, None], [*codes, len(codes) + 1], [*numbers, n_missing]
    return pl.DataFrame({"category": labels, "code": codes, "count": numbers}, schema=ENTRIES)


def integer_vocabulary(schema: Schema, counts: Sequence[np.ndarray]) -> Vocabulary:
    """The vocabulary of a table of codes: category k of a field is the number k, code k."""
    fields = []
    for field, count in zip(schema.fields, counts, strict=True):
        number = np.arange(len(count))
        entries = {"category": pl.Series(number).cast(pl.String), "code": number, "count": count}
        fields.append(FieldVocabulary(field, pl.DataFrame(entries, schema=ENTRIES)))
    return Vocabulary(schema, fields)
