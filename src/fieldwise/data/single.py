"""Encodes one row at a time, a dict of raw values as a server gets it. Same codes as for a frame.

Known values are looked up; anything unusual goes through `Vocabulary.encode` as a frame of one row
and is cached, so that keys are defined in one place only, which is not here.
"""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import SchemaError
from .chunks import Chunk
from .frames import to_frame
from .schema import Schema
from .values import LARGEST_LINEAR
from .vocabulary import FieldVocabulary, Vocabulary
from .words import StoredWords

__all__ = ["RowCoder", "is_row"]

REMEMBERED = 1 << 20  # unusual values of a field that are cached
LONG = 256  # letters; longer texts are not cached
LARGEST = float(np.finfo(np.float32).max)


class _FieldCoder:
    """Encodes any value of a field by `Vocabulary.encode`, with a cache. `n_unseen` counts the
    values that training never saw."""

    def __init__(self, words: FieldVocabulary) -> None:
        self.field = words.field
        self.n_unseen = 0
        self._words = words
        self._alone = words.alone()
        self._others: dict[Any, tuple[int, float, int]] = {}

    def __call__(self, value: Any) -> tuple[int, float]:
        return self._unusual(value)

    def _unusual(self, value: Any) -> tuple[int, float]:
        # Equal values may have different texts: -0.0 and 0.0.
        key: Any = (type(value), value, repr(value) if type(value) is float else None)
        try:
            found = self._others.get(key)
        except TypeError:
            key = found = None  # unhashable: not cached
        if found is None:
            frame, n_unseen = to_frame({self.field.column: [value]}), np.zeros(1, int)
            codes, values = self._alone.encode(Chunk(frame), n_unseen)
            number = float(values[0, 0]) if self.field.is_linear else 1.0
            found = int(codes[0, 0]), number, int(n_unseen[0])
            short = type(value) is not str or len(value) <= LONG
            if key is not None and short and len(self._others) < REMEMBERED:
                self._others[key] = found
        self.n_unseen += found[2]
        return found[:2]


class _BinCoder(_FieldCoder):
    def __call__(self, value: Any) -> tuple[int, float]:
        if type(value) in (int, float) and value == value:
            return 1 + bisect_right(self.field.edges or (), value), 1.0
        return self._unusual(value)


class _LinearCoder(_FieldCoder):
    def __call__(self, value: Any) -> tuple[int, float]:
        if type(value) in (int, float) and abs(value) < LARGEST_LINEAR:
            center, scale = self._words.scaling
            return 0, min(max((value - center) / scale, -LARGEST), LARGEST)
        return self._unusual(value)


class _WordCoder(_FieldCoder):
    """Looks texts and whole numbers up; anything else is unusual."""

    def __init__(self, words: FieldVocabulary) -> None:
        super().__init__(words)
        self._unseen: Any = {"mean": -1, "rare": 0, "error": None}[self.field.unseen]
        # In a text field an unknown text is unseen; numbers can be written in several ways.
        self._is_final = self._unseen is not None and self.field.dtype == "string"

    @cached_property
    def _known(self) -> dict[Any, int]:
        entries = self._words.entries.drop_nulls("category")
        known: dict[Any, int] = dict(zip(entries["category"], entries["code"], strict=True))
        if self.field.dtype == "integer":
            known |= {int(k): c for k, c in known.items() if k.lstrip("-").isdigit()}
        return known

    def __call__(self, value: Any) -> tuple[int, float]:
        kind = type(value)
        if kind is str or kind is int:
            code = self._known.get(value)
            if code is not None:
                return code, 1.0
            if kind is str and self._is_final and _is_text(value):
                self.n_unseen += 1
                return self._unseen, 1.0
        return self._unusual(value)


class _TimeCoder(_WordCoder):
    def __call__(self, value: Any) -> tuple[int, float]:
        key = _calendar_key(value, self.field.part) if type(value) is str else None
        if key is None or self._unseen is None:
            return self._unusual(value)
        code = self._known.get(key)
        if code is None:
            self.n_unseen += 1
            return self._unseen, 1.0
        return code, 1.0


def _is_text(value: str) -> bool:
    """Whether it is valid Unicode; a lone surrogate is not, and is refused in a table."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


DAY = re.compile(r"\d{4}-\d\d-\d\d(?![0-9])", re.ASCII)
CLOCK = re.compile(r"[T ](\d\d):(\d\d)(?![0-9])", re.ASCII)


def _calendar_key(text: str, part: str | None) -> str | None:
    """The part of a time as `values.field_keys` gives it; None where that is not as simple."""
    if not DAY.match(text):
        return None
    if part == "date":
        return text[:10]
    if part in ("hour", "minute"):
        found = CLOCK.match(text, 10)
        return str(int(found[1 if part == "hour" else 2])) if found else None
    try:
        day = dt.date.fromisoformat(text[:10])
    except ValueError:
        return None
    return str(day.isoweekday() if part == "weekday" else getattr(day, part or ""))


def _coder(words: FieldVocabulary) -> _FieldCoder | _ListCoder:
    field = words.field
    if field.is_list:
        return _ListCoder(words)
    if field.is_binned:
        return _BinCoder(words)
    if field.is_linear:
        return _LinearCoder(words)
    if field.part is not None:
        return _TimeCoder(words)
    return _FieldCoder(words) if field.binning else _WordCoder(words)


class _ListCoder:
    """Encodes a list of texts or whole numbers directly, anything else by `Vocabulary.encode`.
    `n_unseen` counts the lists with a value that training never saw, or with too many."""

    def __init__(self, words: FieldVocabulary) -> None:
        self.field = words.field
        self.n_unseen = 0
        self._alone = words.alone()
        item = replace(words.field, kind="category", separator=None, n_slots=1)
        self._item = _WordCoder(replace(words, field=item))

    def __call__(self, value: Any) -> tuple[np.ndarray, np.ndarray]:
        field = self.field
        items = [value] if isinstance(value, str) else value
        if field.separator is not None and isinstance(value, str):
            items = value.split(field.separator)
        if field.separator is not None and isinstance(items, (list, tuple)):
            items = [item.strip() if isinstance(item, str) else item for item in items]
        usual = isinstance(items, (list, tuple)) and 0 < len(items) <= field.n_slots
        if not usual or not all(isinstance(item, (str, int)) and item != "" for item in items):
            n_unseen = np.zeros(1, int)
            codes, values = self._alone.encode(Chunk(to_frame({field.column: [value]})), n_unseen)
            self.n_unseen += int(n_unseen[0])
            return codes[0], values[0]
        codes, values = np.zeros(field.n_slots, np.int32), np.zeros(field.n_slots, np.float32)
        before = self._item.n_unseen
        codes[: len(items)] = [self._item(item)[0] for item in items]
        self.n_unseen += self._item.n_unseen > before
        values[: len(items)] = 1.0 if field.pooling == "sum" else 1.0 / np.float32(len(items))
        return codes, values


class RowCoder:
    """Encodes a dict of raw values: codes (1, S) and values (1, valued slots). An absent column is
    an error."""

    def __init__(self, vocabulary: Vocabulary | StoredWords) -> None:
        self._coders = [_coder(f) for f in vocabulary.fields]
        self._fields = [f.column for f in vocabulary.schema.fields]

    @cached_property
    def _plan(self) -> list[tuple[str, Any, Any]]:
        """For every field its column, its coder, and a lookup of texts to try first: calling the
        coder takes as long as all the rest."""
        return [
            (name, coder, coder._known.get if type(coder) is _WordCoder else None)
            for name, coder in zip(self._fields, self._coders, strict=True)
        ]

    def __call__(
        self, row: Mapping[str, Any], *, without: str | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`without` names a field whose value is not needed; its codes are 0."""
        if without is None and self._is_plain:
            return self._plain_codes(row), np.empty((1, 0), np.float32)
        codes: list[int] = []
        values: list[float] = []
        try:
            for name, coder, find in self._plan:
                if without is not None and coder.field.name == without:
                    codes += [0] * coder.field.n_slots
                    if coder.field.is_list or coder.field.is_linear:
                        values += [1.0] * coder.field.n_slots
                    continue
                value = row[name]
                code = find(value) if find is not None and type(value) is str else None
                if code is not None:
                    codes.append(code)
                elif type(coder) is _ListCoder:
                    several, carried = coder(value)
                    codes += several.tolist()
                    values += carried.tolist()
                else:
                    code, number = coder(value)
                    codes.append(code)
                    if type(coder) is _LinearCoder:
                        values.append(number)
        except KeyError as error:
            raise _absent(error) from None
        return np.array([codes], np.int32), np.array([values], np.float32)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether every field has one code and no value."""
        return not any(type(coder) in (_ListCoder, _LinearCoder) for coder in self._coders)

    def _plain_codes(self, row: Mapping[str, Any]) -> np.ndarray:
        """The codes if `_is_plain`: first look up all texts, then encode what is left."""
        try:
            codes: list[Any] = [
                find(value) if type(value := row[name]) is str and find is not None else None
                for name, _, find in self._plan
            ]
        except KeyError as error:
            raise _absent(error) from None
        if None in codes:
            for j, code in enumerate(codes):
                if code is None:
                    name, coder, _ = self._plan[j]
                    codes[j] = coder(row[name])[0]
        return np.array([codes], np.int32)

    @property
    def n_unseen(self) -> list[int]:
        """(m,) the number of rows so far in which a field had what training never saw"""
        return [coder.n_unseen for coder in self._coders]


def _absent(error: KeyError) -> SchemaError:
    return SchemaError(f"the row has no value for column {error}; None means missing")


def is_row(data: Any, schema: Schema) -> bool:
    """Whether `data` is a dict of values, not of columns. List fields decide only if there are no
    others: then a list is one row's value if its items are plain and the field has no separator."""
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
