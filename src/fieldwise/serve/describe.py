"""What a model's columns are, their usual values, and which categories they have."""

from __future__ import annotations

from functools import cached_property
from math import exp, sqrt
from typing import Any

import numpy as np
import polars as pl

from ..data.vocabulary import FieldVocabulary
from ..errors import unknown_column
from ..model import FieldwiseModel

__all__ = ["Description"]

TOP = 20  # categories of a column that are shown without a search
SPREADS = 3  # standard deviations of a linear field, which cover nearly all of its values
LARGEST = 1e30  # that a linear field is said to take: its scores stay numbers
DIGITS = r"([+-]?[0-9]{1,30}(\.[0-9]{0,30})?)?"  # a number as text, or none
BLANK = r"[ \t\r\n]*"
KINDS = {"numeric": "number", "list": "list", "category": "category"}


class Description:
    """Describes a model's columns, each of which may be several of its fields."""

    def __init__(self, model: FieldwiseModel, id: str) -> None:
        self._model, self._id = model, id
        self._columns: dict[str, list[FieldVocabulary]] = {}
        for field in model.base_vocabulary.fields:
            self._columns.setdefault(field.field.column, []).append(field)
        self._lowered: dict[str, pl.DataFrame] = {}

    @cached_property
    def schema(self) -> dict[str, Any]:
        """What GET /schema answers."""
        return {
            "model": self._about(),
            "fields": [self._column(name, fields) for name, fields in self._columns.items()],
        }

    def _about(self) -> dict[str, Any]:
        model, schema = self._model, self._model.schema
        target = schema.target
        task = "number" if target is None or target.kind == "numeric" else target.kind
        words: Any = model.vocabulary
        return {
            "id": self._id,
            "target": target.column if target else None,
            "targets": [t.column for t in schema.targets],
            "task": task,
            "loss": model.objective.heads[0].loss,
            "classes": list(target.classes) if target and task == "classes" else [],
            "combine": "boosted" if model.boosted is not None else model.objective.combine,
            "crosses": len(words.evidence) if words.evidence is not None else 0,
            "rows": model.settings.get("rows"),
            "parameters": model.layout.n_parameters,
            "metrics": {k: v for k, v in model.metrics.items() if np.isfinite(v)},
        }

    def _column(self, name: str, fields: list[FieldVocabulary]) -> dict[str, Any]:
        words = fields[0]
        kind = self._kind(fields)
        about = {
            "name": name,
            "column": name,
            "kind": kind,
            "dtype": "string" if kind == "time" else words.field.dtype,
            "fields": [f.field.name for f in fields],
            "n_categories": None if kind in ("number", "time") else words.entries.height,
            "usual": self._usual(fields),
            "top": [] if kind in ("number", "time") else _shown(self._by_count(words).head(TOP)),
            "separator": words.field.separator,
        }
        return about | (self._range(words) if kind == "number" else {})

    @staticmethod
    def _kind(fields: list[FieldVocabulary]) -> str:
        first = fields[0].field
        return "time" if first.part is not None else KINDS[first.kind]

    @staticmethod
    def _by_count(words: FieldVocabulary) -> pl.DataFrame:
        """category and count, the most frequent first; ties in the order of codes"""
        return words.entries.sort("count", descending=True, maintain_order=True)

    def _usual(self, fields: list[FieldVocabulary]) -> Any:
        """The most frequent value of a column, or one that stands for the most frequent."""
        words, field = fields[0], fields[0].field
        if field.is_linear:
            return words.scaling[0]
        if field.part is not None:
            return _usual_time({f.field.part or "": self._most(f) for f in fields})
        category = self._most(words)
        if category is None:
            return None
        if field.is_binned:
            code = int(self._by_count(words)["code"][0])
            middles = words.bin_middles()
            return middles[code - 1] if 0 < code <= len(middles) else None
        if field.is_list:
            return [category]
        return _log_value(int(category)) if field.binning == "log2" else category

    def _most(self, words: FieldVocabulary) -> str | None:
        found = self._by_count(words)["category"]
        return found[0] if len(found) else None

    @staticmethod
    def _range(words: FieldVocabulary) -> dict[str, float | None]:
        """The range of nearly all of training's numbers."""
        field = words.field
        if field.edges:
            return {"least": field.edges[0], "most": field.edges[-1]}
        if field.is_linear:
            center, scale = words.scaling
            return {"least": center - SPREADS * scale, "most": center + SPREADS * scale}
        return {"least": None, "most": None}

    def usual_row(self) -> dict[str, Any]:
        """A row with the usual value of every column."""
        return {name: self._usual(fields) for name, fields in self._columns.items()}

    def categories(self, name: str, text: str, limit: int) -> list[dict[str, Any]]:
        """Categories of a column, or of one field, that begin with the text, then those that
        contain it, each the most frequent first; case does not matter."""
        words = self._find(name)
        if not words.field.is_counted or words.field.binning:
            return []
        if not text:
            return _shown(self._by_count(words).head(limit))
        name = words.field.name
        if name not in self._lowered:
            known = self._by_count(words).drop_nulls("category")
            self._lowered[name] = known.with_columns(low=pl.col("category").str.to_lowercase())
        known, low, wanted = self._lowered[name], pl.col("low"), pl.lit(text.lower())
        begins = known.filter(low.str.starts_with(wanted)).head(limit)
        inside = low.str.contains(wanted, literal=True) & ~low.str.starts_with(wanted)
        more = known.filter(inside).head(limit - begins.height)
        return _shown(pl.concat([begins, more]))

    def _find(self, name: str) -> FieldVocabulary:
        if name in self._columns:
            return self._columns[name][0]
        every = {f.field.name: f for fields in self._columns.values() for f in fields}
        if name not in every:
            raise unknown_column(name[:100], [*self._columns], what="field")
        return every[name]

    def row_schema(self) -> dict[str, Any]:
        """JSON Schema of a row."""
        known = {name: self._value_schema(fields) for name, fields in self._columns.items()}
        for name in (*self._model.schema.dropped, *self._model.schema.roles):
            known[name] = {"description": "Not read: the model does not use it."}
        return {
            "type": "object",
            "properties": known,
            "required": list(self._columns),
            "additionalProperties": False,
        }

    @staticmethod
    def _value_schema(fields: list[FieldVocabulary]) -> dict[str, Any]:
        field = fields[0].field
        plain = ["string", "number", "boolean"]
        if field.is_list:
            items = {"type": "array", "items": {"type": plain}, "minItems": 1}
            return {"anyOf": [items, {"type": [*plain, "null"]}]}
        if field.part is not None:
            clock = any(f.field.part in ("hour", "minute") for f in fields)
            formats = ["date-time"] if clock else ["date", "date-time"]
            times = [{"type": "string", "format": name} for name in formats]
            return {"anyOf": [*times, {"enum": ["", None], "description": "No value."}]}
        if field.kind == "numeric" or field.dtype in ("integer", "float"):
            wide = {"minimum": -LARGEST, "maximum": LARGEST} if field.is_linear else {}
            blank = BLANK if field.kind == "numeric" else ""
            pattern = f"^{blank}{DIGITS}{blank}$"
            text = {"type": "string", "pattern": pattern, "description": "A number, or none."}
            return {"anyOf": [{"type": ["number", "boolean", "null"], **wide}, text]}
        return {"type": [*plain, "null"]}


def _usual_time(parts: dict[str, str | None]) -> str | None:
    """A time with the most frequent date, and the most frequent hour and minute if known."""
    if "date" not in parts or parts["date"] is None:
        return None
    clock = {k: int(v) for k in ("hour", "minute") if (v := parts.get(k)) is not None}
    if not clock:
        return parts["date"]
    return f"{parts['date']}T{clock.get('hour', 0):02}:{clock.get('minute', 0):02}:00"


def _log_value(key: int) -> float:
    """A number to which the log rule gives this key."""
    return float(key + 2) if key <= 0 else exp(sqrt(key + 0.5))


def _shown(entries: pl.DataFrame) -> list[dict[str, Any]]:
    pairs = entries.select("category", "count").iter_rows()
    return [{"value": category, "count": count} for category, count in pairs]
