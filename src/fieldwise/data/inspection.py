"""What `fieldwise inspect` shows, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..layout import Layout
from .profiling import ColumnProfile, infer_schema, profile
from .readers import format_schema, open_source
from .schema import Field, check_names

__all__ = ["inspect_table"]


def inspect_table(
    data: Any,
    *,
    format: str = "auto",
    target: str | None = None,
    drop: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    separator: str | None = None,
    quote: bool = True,
    min_count: int | None = None,
    rank: int = 8,
    show: bool | None = False,
) -> dict[str, Any]:
    """Columns with kind, distinct values, missing and rare shares; and what a model would cost."""
    source = open_source(data, format=format, separator=separator, quote=quote)
    known = format_schema(format, min_count)
    if known is not None:
        target = target or (known.target.column if known.target else None)
        drop = [*known.dropped, *drop]
    target = target or source.target
    check_names([*drop, *([target] if target else [])], source.columns, "column")
    profiles = profile(source, columns=[c for c in source.columns if c not in drop], show=show)
    if known is None:
        settings: dict[str, Any] = {} if min_count is None else {"min_count": min_count}
        empty = [p.name for p in profiles if p.n_missing == p.n_rows and p.name != target]
        known = infer_schema(profiles, target=target, drop=empty, kinds=kinds, **settings)
    fields: dict[str, list[Field]] = {}
    for field in known.fields:
        fields.setdefault(field.column, []).append(field)
    columns = [_describe(p, fields.get(p.name, []), target) for p in profiles]
    sizes = [c["rows"] for c in columns if c["rows"]]
    layout = Layout.of(sizes or [1], rank=rank)
    return {
        "table": source.name,
        "n_rows": profiles[0].n_rows,
        "columns": columns,
        "cost": {
            "rank": rank,
            "fields": len(known),
            "rows": layout.n_rows,
            "parameters": layout.n_parameters,
            # The table and Adagrad's state, four bytes an entry each.
            "memory_mb": 8 * layout.n_parameters / 1e6,
        },
    }


def _describe(column: ColumnProfile, fields: list[Field], target: str | None) -> dict[str, Any]:
    role = "target" if column.name == target else "empty" if not fields else fields[0].kind
    if fields and fields[0].part:
        role = "time"
    elif fields and fields[0].binning:
        role = f"numeric ({fields[0].binning})"
    least = fields[0].min_count if fields else 1
    return {
        "name": column.name,
        "kind": role,
        "dtype": column.dtype,
        "distinct": column.n_distinct,
        "missing": column.n_missing / column.n_rows,
        "rare": column.rare_share(least) if role == "category" else 0.0,
        "rows": sum(_rows(column, f) for f in fields) or None,
    }


def _rows(column: ColumnProfile, field: Field) -> int:
    """How many rows of the table the field would own: an estimate for bins and calendar parts."""
    missing = int(column.n_missing > 0)
    if field.is_linear:
        return 2
    if field.part is not None:
        usual = {"hour": 24, "weekday": 7, "month": 12, "day": 31, "minute": 60}
        return 1 + missing + usual.get(field.part, 366)
    if field.binning == "log2":
        return 1 + missing + min(column.n_distinct or 200, 200)
    if field.is_binned:
        bins = min(field.n_bins, column.n_distinct or field.n_bins)
        return 1 + missing + bins
    return 1 + missing + int((column.counts >= field.min_count).sum())
