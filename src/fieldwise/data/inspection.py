"""What `fieldwise inspect` shows, as a dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..layout import Layout, default_rank
from .encoding import schema_of
from .profiling import ColumnProfile, profile
from .readers import open_source
from .schema import Field, Schema, names_of

__all__ = ["inspect_table"]


def inspect_table(
    data: Any,
    *,
    format: str = "auto",
    target: str | Sequence[str] | None = None,
    trials: str | None = None,
    weight: str | None = None,
    drop: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    separator: str | None = None,
    quote: bool = True,
    min_count: int | None = None,
    rank: int | None = None,
    show: bool | None = False,
) -> dict[str, Any]:
    """Each column's kind, distinct values, missing and rare shares; and what a model would cost."""
    source = open_source(data, format=format, separator=separator, quote=quote)
    wanted = [c for c in source.columns if c not in drop]
    profiles = profile(source, columns=wanted, kinds=kinds, show=show)
    named = names_of(target)
    empty = [p.name for p in profiles if p.n_missing == p.n_rows and p.name not in named]
    schema = schema_of(
        source,
        format=format,
        target=target,
        trials=trials,
        weight=weight,
        drop=drop,
        kinds=kinds,
        profiles=[p for p in profiles if p.name not in empty],
        min_count=min_count,
    )
    by_column: dict[str, list[Field]] = {}
    for field in schema.fields:
        by_column.setdefault(field.column, []).append(field)
    columns, sizes = [], []
    for look in profiles:
        fields = by_column.get(look.name, [])
        rows = [_rows(look, f) for f in fields]
        columns.append(_describe(look, fields, schema, sum(rows)))
        sizes += rows
    rank = default_rank(sizes) if rank is None else rank
    layout = Layout.of(sizes, rank=rank)
    return {
        "table": source.name,
        "n_rows": profiles[0].n_rows,
        "columns": columns,
        "cost": {
            "rank": rank,
            "fields": len(schema),
            "rows": layout.n_rows,
            "parameters": layout.n_parameters,
            # The table, Adagrad's state, an epoch's mean and the best: four bytes per entry each.
            "memory_mb": 16 * layout.n_parameters / 1e6,
        },
    }


def _describe(
    column: ColumnProfile, fields: list[Field], schema: Schema, rows: int
) -> dict[str, Any]:
    counted = [f for f in fields if f.is_counted and f.part is None and f.binning is None]
    return {
        "name": column.name,
        "kind": _role(column, fields, schema),
        "dtype": column.dtype,
        "distinct": column.n_distinct,
        "missing": column.n_missing / column.n_rows,
        "rare": column.rare_share(counted[0].min_count) if counted else 0.0,
        "rows": rows or None,
    }


def _role(column: ColumnProfile, fields: list[Field], schema: Schema) -> str:
    if column.name in (target.column for target in schema.targets):
        return "target"
    if column.name == schema.weight:
        return "weight"
    if column.name == schema.trials:
        return "trials"
    if not fields:
        return "empty" if column.n_missing == column.n_rows else "not used"
    if fields[0].part:
        return "time"
    if fields[0].is_list:
        return f"list (up to {column.longest})"
    return f"numeric ({fields[0].binning})" if fields[0].binning else "category"


def _rows(column: ColumnProfile, field: Field) -> int:
    """How many rows of the table the field would have; for bins and calendar parts an estimate."""
    missing = int(column.n_missing >= field.min_count)
    if field.is_linear:
        return 2
    if field.part is not None:
        usual = {"hour": 24, "weekday": 7, "month": 12, "day": 31, "minute": 60}
        return 1 + missing + min(usual.get(field.part, 366), column.n_distinct or 366)
    if field.binning == "log2":
        return 1 + missing + min(column.n_distinct or 200, 200)
    if field.is_binned:
        bins = min(field.n_bins, column.n_distinct or field.n_bins)
        return 1 + int(column.n_missing > 0) + bins
    return 1 + missing + int((column.counts >= field.min_count).sum())
