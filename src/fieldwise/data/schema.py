"""What a table's columns mean: `Field` for one, `Schema` for all. Frozen, plain, JSON round trip.

A schema is settled in two steps: first the kinds (guessed by `infer_schema` or given), then, once
an encoder has seen the data, what it measured (`edges` of bins, `center` and `scale` of a linear
field). Standard library only, so that a store can be opened where only NumPy is installed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

from ..errors import SchemaError, not_one_of, unknown_column

__all__ = [
    "BINNINGS",
    "DTYPES",
    "KINDS",
    "PARTS",
    "POOLINGS",
    "UNSEEN",
    "Field",
    "Schema",
    "Target",
    "slot_positions",
]

VERSION = 1
KINDS = ("category", "numeric", "list")
DTYPES = ("string", "integer", "float", "boolean")
PARTS = ("date", "year", "month", "day", "weekday", "hour", "minute")
BINNINGS = ("quantile", "log2", "linear", "edges")
UNSEEN = ("mean", "rare", "error")
POOLINGS = ("mean", "sum")
SHARED = ("min_count", "unseen", "n_bins", "pooling", "max_values")


def _one_of(name: str, setting: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise not_one_of(f"field {name!r}: {setting}={value!r}", value, allowed, error=SchemaError)


def _texts(owner: object, **given: object) -> None:
    for setting, value in given.items():
        if not isinstance(value, str):
            raise SchemaError(f"{owner!r}: {setting}={value!r} is not text")


def _is_scaling(center: Any, scale: Any) -> bool:
    try:
        return math.isfinite(center) and math.isfinite(scale) and scale > 0
    except (TypeError, OverflowError):
        return False


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field: where its values come from and how they become rows of the table.

    A list has several categories per row; text with a `separator` is one too. The table's rows for
    its categories are summed or averaged.

    Parameters
    ----------
    name : a name that no other field has.
    kind : "category", "numeric" or "list".
    column : the column it reads; its name unless it is a calendar part.
    part : "date", "year", "month", "day", "weekday", "hour" or "minute" of a time.
    dtype : what a category decodes to: "string", "integer", "float" or "boolean".
    min_count : categories seen less often share the rare row.
    unseen : what a value never seen in training becomes: "mean", "rare" or "error".
    binning : of a number: "quantile", "log2", "linear" (no bins) or "edges".
    n_bins : the most quantile bins.
    edges : bin k holds edges[k - 1] <= v < edges[k].
    center : of a linear field, with `scale`: its value is (v - center) / scale.
    scale : see `center`; an encoder measures both.
    separator : what text is split at into the values of a list.
    pooling : whether a list's rows are averaged, "mean", or summed, "sum".
    max_values : the most values a list may have in training; None is 256.
    n_slots : the length of the longest list; an encoder measures it.
    cross : the fields of the cross whose evidence it holds; it then reads no column.
    """

    name: str
    kind: str = "category"
    column: str = ""
    part: str | None = None
    dtype: str = "string"
    min_count: int = 2
    unseen: str = "mean"
    binning: str | None = None
    n_bins: int = 32
    edges: tuple[float, ...] | None = None
    center: float | None = None
    scale: float | None = None
    separator: str | None = None
    pooling: str = "mean"
    max_values: int | None = None
    n_slots: int = 1
    cross: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise SchemaError("a field needs a name")
        _texts(self.name, name=self.name, column=self.column, separator=self.separator or "")
        _texts(self.name, **{f"cross[{k}]": name for k, name in enumerate(self.cross)})
        if not self.column:
            object.__setattr__(self, "column", self.name)
        object.__setattr__(self, "cross", tuple(self.cross))
        _one_of(self.name, "kind", self.kind, KINDS)
        _one_of(self.name, "dtype", self.dtype, DTYPES)
        _one_of(self.name, "unseen", self.unseen, UNSEEN)
        if self.part is not None:
            _one_of(self.name, "part", self.part, PARTS)
        if self.kind == "numeric":
            if self.binning is None:
                object.__setattr__(self, "binning", "quantile" if self.edges is None else "edges")
            _one_of(self.name, "binning", self.binning, BINNINGS)
            if self.binning == "log2":  # its bins are named by whole numbers
                object.__setattr__(self, "dtype", "integer")
        elif self.binning is not None or self.edges is not None:
            what = f"binning={self.binning!r}" if self.binning else "edges"
            raise SchemaError(f"field {self.name!r}: {what} needs kind='numeric'")
        _one_of(self.name, "pooling", self.pooling, POOLINGS)
        if self.part is not None and self.kind != "category":
            raise SchemaError(f"field {self.name!r}: a calendar part is a category")
        if self.kind == "list":
            if self.separator == "":
                raise SchemaError(f"field {self.name!r}: the separator is empty")
        elif self.separator is not None or self.n_slots != 1:
            raise SchemaError(f"field {self.name!r}: several values a row need kind='list'")
        if (self.center is None) != (self.scale is None):
            raise SchemaError(f"field {self.name!r}: center and scale go together")
        if self.scale is not None and not _is_scaling(self.center, self.scale):
            raise SchemaError(
                f"field {self.name!r}: center={self.center!r} and scale={self.scale!r} must be "
                "finite numbers, scale above 0"
            )
        for setting in ("min_count", "n_bins", "max_values", "n_slots"):
            value = getattr(self, setting)
            if value is None and setting == "max_values":
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise SchemaError(
                    f"field {self.name!r}: {setting}={value!r} must be a whole number of at least 1"
                )
        if self.edges is not None:
            self._check_edges()
        elif self.binning == "edges":
            raise SchemaError(f"field {self.name!r}: binning='edges' needs edges=(...)")

    def _check_edges(self) -> None:
        try:
            edges = tuple(float(e) for e in self.edges or ())
        except (TypeError, ValueError, OverflowError) as error:
            raise SchemaError(f"field {self.name!r}: edges={self.edges!r}: {error}") from error
        object.__setattr__(self, "edges", edges)
        rising = all(a < b for a, b in pairwise(edges))
        if not rising or not all(map(math.isfinite, edges)):
            raise SchemaError(
                f"field {self.name!r}: edges must be finite and strictly rising, not {edges!r}"
            )

    @property
    def is_linear(self) -> bool:
        """Whether it stays a number: one row for the slope, one for missing."""
        return self.binning == "linear"

    @property
    def is_binned(self) -> bool:
        """Whether its numbers are cut into bins between edges."""
        return self.binning in ("quantile", "edges")

    @property
    def is_counted(self) -> bool:
        """Whether it has a dictionary of counted keys: categories, lists, calendar parts, log2."""
        return not self.is_linear and not self.is_binned

    @property
    def is_list(self) -> bool:
        """Whether it has several categories per row."""
        return self.kind == "list"

    @property
    def shown_kind(self) -> str:
        """The kind shown to people: a number's binning, the part of a time, or `kind`."""
        return self.binning or self.part or self.kind


@dataclass(frozen=True, kw_only=True)
class Target:
    """The column to learn: one of a few classes, a number, or how many of `trials` succeeded.

    A share is stored as successes over trials; the weight is multiplied by the trials.

    Parameters
    ----------
    column : its name.
    kind : "classes", "numeric" or "share".
    dtype : of its values: "string", "integer", "float" or "boolean".
    classes : filled in once seen; the target is stored as a position in it.
    trials : of a share, the column of trials.
    """

    column: str
    kind: str = "classes"
    dtype: str = "integer"
    classes: tuple[str, ...] = ()
    trials: str | None = None

    def __post_init__(self) -> None:
        _texts(self.column, column=self.column, trials=self.trials or "")
        _texts(self.column, **{f"classes[{k}]": name for k, name in enumerate(self.classes)})
        _one_of(self.column, "kind", self.kind, ("classes", "numeric", "share"))
        if (self.kind == "share") != (self.trials is not None):
            raise SchemaError(f"target {self.column!r}: a share goes with a column of trials")
        _one_of(self.column, "dtype", self.dtype, DTYPES)
        object.__setattr__(self, "classes", tuple(self.classes))


@dataclass(frozen=True, kw_only=True)
class Schema:
    """All fields of a table, its targets (usually one) and its weight column.

    Parameters
    ----------
    fields : a `Field` for each.
    targets : a `Target` for each column to learn.
    weight : the column of sample weights.
    dropped : columns that were left out.
    """

    fields: tuple[Field, ...]
    targets: tuple[Target, ...] = ()
    weight: str | None = None
    dropped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        object.__setattr__(self, "targets", tuple(self.targets))
        object.__setattr__(self, "dropped", tuple(self.dropped))
        if not self.fields:
            raise SchemaError("a schema needs at least one field besides target, weight and drop")
        _texts("weight", weight=self.weight or "")
        _texts("dropped", **{f"dropped[{k}]": name for k, name in enumerate(self.dropped)})
        names = [f.name for f in self.fields]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise SchemaError(f"field {twice[0]!r} appears twice; field names must differ")
        roles = self.roles
        if len(set(roles)) < len(roles):
            raise SchemaError(f"columns {roles}: target, trials and weight cannot be the same")
        if len(self.targets) > 1 and any(t.trials for t in self.targets):
            raise SchemaError("a share of trials cannot be one of several targets")
        for role in roles:
            if role in self.columns:
                raise SchemaError(f"column {role!r} is both a field and the target or weight")

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, name: str) -> Field:
        for f in self.fields:
            if f.name == name:
                return f
        raise unknown_column(name, self.names, what="field")

    @property
    def target(self) -> Target | None:
        """The first target, or None."""
        return self.targets[0] if self.targets else None

    @property
    def trials(self) -> str | None:
        """The column of trials if the target is a share, else None."""
        return self.target.trials if self.target else None

    @property
    def roles(self) -> list[str]:
        """The columns that are not fields: targets, and trials and weight if there are any."""
        names = (*(t.column for t in self.targets), self.trials, self.weight)
        return [name for name in names if name is not None]

    @property
    def is_weighted(self) -> bool:
        return self.weight is not None or self.trials is not None

    @property
    def names(self) -> list[str]:
        return [f.name for f in self.fields]

    @property
    def columns(self) -> list[str]:
        """The source columns that the fields read, each once."""
        return list(dict.fromkeys(f.column for f in self.fields if not f.cross))

    @cached_property
    def linear(self) -> list[int]:
        """Positions of the linear fields."""
        return [i for i, f in enumerate(self.fields) if f.is_linear]

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """How many slots each field has: one, or more for lists."""
        return tuple(f.n_slots for f in self.fields)

    @cached_property
    def valued(self) -> list[int]:
        """Positions of the slots that have a value: those of linear fields and of lists."""
        places = slot_positions(self.slots)
        pairs = zip(self.fields, places, strict=True)
        return [s for f, place in pairs if f.is_linear or f.is_list for s in place]

    @cached_property
    def ordered(self) -> list[int]:
        """Positions of the slots of numbers: a binned field's code rises with the number; of a
        linear one it is the value, with code 1 for missing."""
        places = slot_positions(self.slots)
        pairs = zip(self.fields, places, strict=True)
        return [s for f, place in pairs if f.is_binned or f.is_linear for s in place]

    def with_fields(self, **changes: Any) -> Schema:
        """The schema with these settings changed in every field."""
        check_settings(changes)
        return replace(self, fields=tuple(replace(f, **changes) for f in self.fields))

    def to_dict(self) -> dict[str, Any]:
        plain = {f.name: f.default for f in fields(Field)}
        body = [
            {
                k: v
                for k, v in asdict(f).items()
                if k in ("name", "kind") or v != (f.name if k == "column" else plain[k])
            }
            for f in self.fields
        ]
        return {
            "version": VERSION,
            "fields": body,
            "targets": [asdict(target) for target in self.targets],
            "weight": self.weight,
            "dropped": list(self.dropped),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=1)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Schema:
        version = body.get("version") if isinstance(body, Mapping) else None
        if type(version) is not int:
            raise SchemaError("not a fieldwise schema: it has no version number")
        if version > VERSION:
            raise SchemaError(
                f"the schema has version {version}, this fieldwise reads up to {VERSION}: "
                "upgrade fieldwise"
            )
        try:
            return cls(
                fields=tuple(Field(**f) for f in body["fields"]),
                targets=tuple(Target(**t) for t in body.get("targets", ())),
                weight=body.get("weight"),
                dropped=tuple(body.get("dropped", ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(f"not a fieldwise schema: {error!r}") from error

    @classmethod
    def from_json(cls, text: str) -> Schema:
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"the schema is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise SchemaError("not a fieldwise schema: the JSON is not an object")
        return cls.from_dict(body)

    def difference(self, other: Schema, *, settled: bool = False) -> str:
        """How `other` differs, in one line; empty if it does not.

        With `settled`, what this schema leaves open (edges, scales, classes) may be anything in
        `other`.
        """
        if self.names != other.names:
            gone = [n for n in self.names if n not in other.names]
            new = [n for n in other.names if n not in self.names]
            if gone or new:
                return f"fields missing: {gone or 'none'}, fields added: {new or 'none'}"
            return f"the fields are in another order: {other.names} instead of {self.names}"
        for a, b in zip(self.fields, other.fields, strict=True):
            for part in fields(Field):
                mine, theirs = getattr(a, part.name), getattr(b, part.name)
                open_ = settled and mine is None and part.name in ("edges", "center", "scale")
                open_ |= settled and part.name == "n_slots" and mine == 1
                if mine != theirs and not open_:
                    return f"field {a.name!r} has {part.name}={theirs!r} instead of {mine!r}"
        if [t.column for t in self.targets] != [t.column for t in other.targets]:
            return f"the targets are {other.targets} instead of {self.targets}"
        for target, its in zip(self.targets, other.targets, strict=True):
            same = replace(its, classes=()) if settled and not target.classes else its
            if target != same:
                return f"the target is {its} instead of {target}"
        if self.weight != other.weight:
            return f"the weight is {other.weight!r} instead of {self.weight!r}"
        return ""


def slot_positions(slots: Iterable[int]) -> list[range]:
    """The positions of every field's slots."""
    ends = list(accumulate(slots, initial=0))
    return [range(first, last) for first, last in pairwise(ends)]


def names_of(one_or_more: str | Sequence[str] | None) -> list[str]:
    """A column's name, or several, as a list."""
    if one_or_more is None:
        return []
    return [one_or_more] if isinstance(one_or_more, str) else list(one_or_more)


def check_settings(settings: Iterable[str]) -> None:
    """Raise unless these are settings that all fields share."""
    for name in settings:
        if name not in SHARED:
            raise SchemaError(f"{name!r} is not a setting of all fields: {', '.join(SHARED)}")


def check_names(names: Iterable[str], columns: Iterable[str], what: str) -> None:
    """Raise for the first of `names` that is not in `columns`."""
    columns = list(columns)
    for name in names:
        if name not in columns:
            raise unknown_column(name, columns, what=what)
