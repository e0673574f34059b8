"""Infers a schema from columns' profiles. The rules (each guess can be overridden):

- text, booleans, categoricals: category
- whole numbers, also as floats or as text: category where values repeat (distinct at most n/4),
  else numeric
- other numbers: numeric
- dates and times, also ISO text with a time of day: calendar fields (date, weekday, hour)
- lists: several categories per row; so is text with a kind such as "list:|", split at each |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import DataError, SchemaError, not_one_of
from .profiling import ColumnProfile, parsed_kind
from .schema import Field, Schema, Target, check_names, check_settings, names_of

__all__ = ["infer_schema"]

FINE_BINS = 256  # bins of a number at its finer resolution
KIND_WORDS = ("category", "numeric", "time", "quantile", "log2", "linear", "list")


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
    """The schema, with fields for every column but target, trials, weight and drop.

    `kinds` overrides a guess: category, numeric, time, a binning (quantile, log2, linear), or for
    text with several values "list:" and the separator.
    `settings` (min_count, unseen, n_bins, pooling, max_values) apply to all fields, `fields` to
    those it names. With `resolutions` a number cut into quantile bins also gets a field of finer
    bins, and one of its values if they are whole and repeat.
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
    kind, separator = parsed_kind(kind)
    if kind is not None and kind not in KIND_WORDS:
        raise not_one_of(f"column {name!r}: kind {kind!r}", kind, KIND_WORDS, error=SchemaError)
    if column.n_missing == column.n_rows:
        raise SchemaError(f"column {name!r} has no value in any row; drop it: drop=[{name!r}]")
    kind = kind or column.kind
    if (kind == "list") != (column.longest > 0):
        what = "one value a row; 'list:|' cuts text at every |" if kind == "list" else "lists"
        raise SchemaError(f"column {name!r} is asked to be {kind!r} but holds {what}")
    dtype = column.decodes_to
    if kind == "list":
        if column.is_weighted:
            settings = {"pooling": "sum", **settings}
        return [Field(name=name, kind=kind, dtype=dtype, separator=separator, **settings)]
    if kind == "time":
        return _calendar_fields(column, settings)
    if kind == "category":
        return [Field(name=name, dtype=dtype, **settings)]
    if dtype == "string":
        raise SchemaError(
            f"column {name!r} is asked to be numeric but holds {column.dtype} values "
            "that are not all numbers"
        )
    if kind == "log2" and column.dtype == "boolean":
        raise SchemaError(f"column {name!r} holds booleans; the log rule needs numbers")
    binning = None if kind == "numeric" else kind
    return [Field(name=name, kind="numeric", binning=binning, dtype="float", **settings)]


def _calendar_fields(column: ColumnProfile, settings: dict[str, Any]) -> list[Field]:
    """The fields of a time: date and weekday, and with a time of day the hour."""
    name = column.name
    if column.dtype not in ("date", "time") and not column.is_dated:
        raise SchemaError(
            f"column {name!r} is asked to be a time but holds {column.dtype} values that do "
            "not all begin with a date such as 2024-05-31"
        )
    base = Field(name=name, **settings)
    hours = [("hour", f"{name}.hour", "integer")] if column.dtype == "time" else []
    parts = [("date", name, "string"), ("weekday", f"{name}.weekday", "integer"), *hours]
    return [
        replace(base, name=own, column=name, part=part, dtype=dtype) for part, own, dtype in parts
    ]


def _finer(field: Field, column: ColumnProfile) -> list[Field]:
    """More fields of the same column: finer bins, and its values."""
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
    """The target: classes if it has two values or words, else a number, unless `kind` says."""
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
    dtype = column.decodes_to
    if kind not in (None, "category", "numeric"):
        raise SchemaError(f"target {column.name!r}: kind {kind!r} is not category or numeric")
    if kind == "numeric" and dtype == "string":
        raise SchemaError(f"target {column.name!r} is asked to be numeric but holds text")
    if kind is None:
        kind = "category" if dtype in ("string", "boolean") or column.n_distinct == 2 else "numeric"
    return Target(
        column=column.name, kind="classes" if kind == "category" else "numeric", dtype=dtype
    )
