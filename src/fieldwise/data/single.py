"""One row at a time, as a dict of raw values: what a server gets. Same codes as a frame's.

Values seen before are looked up; anything unusual goes through `Vocabulary.encode` as a frame of
one row and is remembered, so there is one definition of a key and it is not here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from ..errors import SchemaError
from .chunks import Chunk
from .schema import Schema
from .vocabulary import FieldVocabulary, Vocabulary

__all__ = ["RowCoder"]

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


class RowCoder:
    """codes (1, m) and values (1, linear fields) of a dict of raw values; absent is an error."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._coders = [_FieldCoder(f) for f in vocabulary.fields]
        self._names = [f.field.column for f in vocabulary.fields]
        self._linear = vocabulary.schema.linear

    def __call__(self, row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        m = len(self._coders)
        codes = np.empty((1, m), dtype=np.int32)
        values = np.ones((1, m), dtype=np.float32)
        flat_codes, flat_values = codes[0], values[0]
        try:
            for j in range(m):
                flat_codes[j], flat_values[j] = self._coders[j](row[self._names[j]])
        except KeyError as error:
            raise SchemaError(
                f"the row has no value for column {error}; None means missing"
            ) from None
        return codes, values[:, self._linear]
