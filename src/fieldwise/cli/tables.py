"""Commands that look at tables and encode them."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

import typer

from .options import (
    AsJson,
    Bins,
    Clicks,
    Cluster,
    Data,
    Drop,
    Format,
    Impressions,
    Kind,
    MaxValues,
    MinCount,
    NoQuotes,
    Pooling,
    Quiet,
    Separator,
    Target,
    Unseen,
    Weight,
    Workers,
    console,
    kinds_of,
    learned,
    locate,
    on_ray,
)

__all__ = ["encode", "inspect"]


def inspect(
    data: Data,
    target: Target = None,
    format: Format = "auto",
    drop: Drop = None,
    kind: Kind = None,
    clicks: Clicks = None,
    impressions: Impressions = None,
    weight: Weight = None,
    separator: Separator = None,
    no_quotes: NoQuotes = False,
    min_count: MinCount = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Rank the cost is worked out for.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at a table: what each column seems to be, and what a model of it would cost."""
    from ..data.inspection import inspect_table

    found = inspect_table(
        locate(data),
        format=format,
        **learned(target, clicks, impressions),
        weight=weight,
        drop=drop or [],
        kinds=kinds_of(kind),
        separator=separator,
        quote=not no_quotes,
        min_count=min_count,
        rank=rank,
        show=None if not as_json else False,
    )
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False, indent=1))
    else:
        _print_inspection(found, title=data)


def _share(share: float) -> str:
    return "" if not share else "< 0.1%" if share < 0.001 else f"{share:.1%}"


def _print_inspection(found: dict[str, Any], title: str) -> None:
    from rich import box
    from rich.table import Table

    to = console()
    table = Table(
        title=f"{title}: {found['n_rows']:,} rows", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("column", overflow="fold")
    for name in ("kind", "values"):
        table.add_column(name)
    for name in ("distinct", "missing", "rare", "rows"):
        table.add_column(name, justify="right")
    for c in found["columns"]:
        distinct = "" if c["distinct"] is None else f"{c['distinct']:,}"
        rows = "" if c["rows"] is None else f"{c['rows']:,}"
        shares = [_share(c[k]) for k in ("missing", "rare")]
        table.add_row(c["name"], c["kind"], c["dtype"], distinct, *shares, rows)
    to.print(table)
    cost = found["cost"]
    to.print(
        f"A model of rank {cost['rank']}: {cost['fields']} fields, {cost['rows']:,} rows, "
        f"{cost['parameters']:,} parameters, {cost['memory_mb']:,.0f} MB to train."
    )


def encode(
    data: Data,
    out: Annotated[str, typer.Option(help="The folder of the store to write, or a URL.")],
    target: Target = None,
    format: Format = "auto",
    drop: Drop = None,
    kind: Kind = None,
    clicks: Clicks = None,
    impressions: Impressions = None,
    weight: Weight = None,
    separator: Separator = None,
    no_quotes: NoQuotes = False,
    min_count: MinCount = None,
    unseen: Unseen = None,
    bins: Bins = None,
    pooling: Pooling = None,
    max_values: MaxValues = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store.")] = False,
    append: Annotated[bool, typer.Option("--append", help="Add rows to a store.")] = False,
    cluster: Cluster = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Encode a table of any size into a store on disk, ready for training."""
    import time

    from ..data import encode as encode_table
    from ..data import load_vocabulary

    if on_ray(cluster, workers):
        from ..distributed.ray import encode_on_ray

        encode_table = partial(encode_on_ray, n_workers=workers)
    started = time.perf_counter()
    try:
        store = encode_table(
            locate(data),
            out,
            **learned(target, clicks, impressions),
            format=format,
            drop=drop or [],
            kinds=kinds_of(kind),
            weight=weight,
            separator=separator,
            quote=not no_quotes,
            overwrite=overwrite,
            append=append,
            show=False if quiet else None,
            min_count=min_count,
            unseen=unseen,
            n_bins=bins,
            pooling=pooling,
            max_values=max_values,
        )
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {out} is as it was before", err=True)
        raise typer.Exit(130) from None
    if not quiet:
        seconds = time.perf_counter() - started
        sizes = load_vocabulary(store).sizes
        typer.echo(
            f"{out}: {store.n_rows:,} rows, {len(sizes)} fields, {sum(sizes):,} categories, "
            f"{seconds:.1f} s"
        )
