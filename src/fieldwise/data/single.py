"""One row at a time, as a dict of raw values: what a server gets. Same codes as a frame's.

Values seen before are looked up; anything unusual goes through `Vocabulary.encode` as a frame of
one row and is remembered, so there is one definition of a key and it is not here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from ..errors import SchemaError
from .chunks import Chunk
from .frames import to_frame
from .schema import Schema, slot_positions
from .vocabulary import FieldVocabulary, Vocabulary
from .words import StoredWords

__all__ = ["RowCoder", "is_row"]

REMEMBERED = 1 << 20  # unusual values of a field


class _FieldCoder:
    def __init__(self, words: FieldVocabulary) -> None:
        self.field = words.field
        self._alone = Vocabulary(Schema(fields=(words.field,)), [words])
        self._unseen = {"mean": -1, "rare": 0, "error": None}[self.field.unseen]
        self._known: dict[Any, int] | None = None
        self._others: dict[Any, tuple[int, float]] = {}
        self._bins = words.field.edges if words.field.is_binned else None

    def __call__(self, value: Any) -> tuple[int, float]:
        kind = type(value)
        if self._bins is not None:
            if kind in (int, float) and value == value:
                return 1 + bisect_right(self._bins, value), 1.0
        elif self._simple(kind):
            if self._known is None:
                self._known = self._words()
            code = self._known.get(value)
            if code is not None:
                return code, 1.0
            # A text that is no category is unseen; numbers can be written in other ways.
            if kind is str and self.field.dtype == "string" and self._unseen is not None:
                return self._unseen, 1.0
        return self._unusual(value)

    def _simple(self, kind: type) -> bool:
        field = self.field
        return field.is_counted and field.part is None and not field.binning and kind in (str, int)

    def _words(self) -> dict[Any, int]:
        entries = self._alone.fields[0].entries.drop_nulls("category")
        words: dict[Any, int] = dict(zip(entries["category"], entries["code"], strict=True))
        if self.field.dtype == "integer":
            words |= {int(k): c for k, c in words.items() if k.lstrip("-").isdigit()}
        return words

    def _unusual(self, value: Any) -> tuple[int, float]:
        key: Any = (type(value), value)
        try:
            if key in self._others:
                return self._others[key]
        except TypeError:
            key = None  # unhashable: not remembered
        column = pl.Series(self.field.column, [value], strict=False)
        codes, values = self._alone.encode(Chunk(column.to_frame()))
        out = int(codes[0, 0]), float(values[0, 0]) if self.field.is_linear else 1.0
        if key is not None and len(self._others) < REMEMBERED:
            self._others[key] = out
        return out


class _ListCoder:
    """The slots of a list of texts or whole numbers; anything else goes the long way."""

    def __init__(self, words: FieldVocabulary) -> None:
        self._field = words.field
        self._alone = Vocabulary(Schema(fields=(words.field,)), [words])
        item = replace(words.field, kind="category", separator=None, n_slots=1)
        self._item = _FieldCoder(replace(words, field=item))

    def __call__(self, value: Any) -> tuple[np.ndarray, np.ndarray]:
        field = self._field
        items = [value] if isinstance(value, str) else value
        if field.separator is not None and isinstance(value, str):
            items = value.split(field.separator)
        if field.separator is not None and isinstance(items, (list, tuple)):
            items = [item.strip() if isinstance(item, str) else item for item in items]
        usual = isinstance(items, (list, tuple)) and 0 < len(items) <= field.n_slots
        if not usual or not all(isinstance(item, (str, int)) and item != "" for item in items):
            codes, values = self._alone.encode(Chunk(to_frame({field.column: [value]})))
            return codes[0], values[0]
        codes, values = np.zeros(field.n_slots, np.int32), np.zeros(field.n_slots, np.float32)
        codes[: len(items)] = [self._item(item)[0] for item in items]
        values[: len(items)] = 1.0 if field.pooling == "sum" else 1.0 / np.float32(len(items))
        return codes, values


class RowCoder:
    """codes (1, S) and values (1, valued slots) of a dict of raw values; absent is an error."""

    def __init__(self, vocabulary: Vocabulary | StoredWords) -> None:
        schema = vocabulary.schema
        coders: list[Any] = [
            _ListCoder(f) if f.field.is_list else _FieldCoder(f) for f in vocabulary.fields
        ]
        places = slot_positions(schema.slots)
        at: list[Any] = [
            slice(place.start, place.stop) if f.is_list else place.start
            for f, place in zip(schema.fields, places, strict=True)
        ]
        columns = [f.column for f in schema.fields]
        self._parts = list(zip(coders, columns, at, strict=True))
        self._fields = schema.names
        self._width, self._valued = sum(schema.slots), schema.valued

    def __call__(
        self, row: Mapping[str, Any], *, without: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`without`: a field whose value is not asked for; its code is 0."""
        codes = np.zeros((1, self._width), dtype=np.int32)
        values = np.ones((1, self._width), dtype=np.float32)
        flat_codes, flat_values = codes[0], values[0]
        parts = self._parts
        if without is not None:
            parts = [
                part for part, field in zip(parts, self._fields, strict=True) if field != without
            ]
        try:
            for coder, name, at in parts:
                flat_codes[at], flat_values[at] = coder(row[name])
        except KeyError as error:
            raise SchemaError(
                f"the row has no value for column {error}; None means missing"
            ) from None
        return codes, values[:, self._valued]


def is_row(data: Any, schema: Schema) -> bool:
    """A dict of values, not of columns. What a list field holds does not tell, unless there is
    nothing else: then a list is a row's where its items are plain and no separator cuts them."""
    if not isinstance(data, Mapping):
        return False
    lists = {f.column: f for f in schema.fields if f.is_list}
    plain = [v for name, v in data.items() if name not in lists]
    if plain:
        return all(map(_is_plain, plain))
    return all(
        _is_plain(data.get(name)) or (field.separator is None and all(map(_is_plain, data[name])))
        for name, field in lists.items()
    )


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) or not hasattr(value, "__len__")
