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
    kinds_of,
    locate,
    on_ray,
    target_of,
)
from .screen import interruptible, say, show_table

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
        int | None, typer.Option(min=0, help="The rank for which to work out what a model costs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """See what each column of a table is, and what a model would cost.

    fieldwise inspect clicks.csv --target clicked
    fieldwise inspect 'logs/*.parquet' --target clicked --kind hour=category
    """
    from ..data.inspection import inspect_table

    found = inspect_table(
        locate(data),
        format=format,
        **target_of(target, clicks, impressions),
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
    rows = []
    for c in found["columns"]:
        counts = ["" if c[k] is None else f"{c[k]:,}" for k in ("distinct", "rows")]
        shares = [_share(c[k]) for k in ("missing", "rare")]
        rows.append((c["name"], c["kind"], c["dtype"], counts[0], *shares, counts[1]))
    heads = ("column", "kind", "values", "distinct", "missing", "rare", "rows")
    title = f"{title}: {found['n_rows']:,} rows"
    show_table(title, heads, rows, words=3, spare=("values", "rows"))
    cost = found["cost"]
    say(
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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing store.")
    ] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Add rows to an existing store.")
    ] = False,
    cluster: Cluster = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Turn a table of any size into a store, ready for training.

    fieldwise encode logs/ --target clicked --out clicks.store
    fieldwise train clicks.store --out clicks.model
    fieldwise encode today.csv --out clicks.store --append
    """
    import time

    from ..data import encode as encode_table
    from ..data import load_vocabulary

    if on_ray(cluster, workers):
        from ..distributed.ray import encode_on_ray

        encode_table = partial(encode_on_ray, n_workers=workers)
    started = time.perf_counter()
    with interruptible(f"{out} is as it was before"):
        store = encode_table(
            locate(data),
            out,
            **target_of(target, clicks, impressions),
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
    if not quiet:
        seconds = time.perf_counter() - started
        sizes = load_vocabulary(store).sizes
        typer.echo(
            f"{out}: {store.n_rows:,} rows, {len(sizes)} fields, {sum(sizes):,} categories, "
            f"{seconds:.1f} s"
        )
