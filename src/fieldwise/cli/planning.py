"""The command that estimates the time and memory of training with many workers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from ..errors import SettingError
from .options import AsJson, locate

__all__ = ["plan"]


def plan(
    data: Annotated[
        str | None,
        typer.Argument(metavar="STORE", help="A store; or leave it out and give --shape."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="criteo, avazu, or the number of categories of each field, separated by commas."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 2,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each worker; all cores unless set.")
    ] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Rank of every field's models.")] = None,
    rank_base: Annotated[
        float | None,
        typer.Option(help="Instead: ranks grow as the logarithm, to this base, of a field's size."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per step.")] = 2048,
    latency: Annotated[float, typer.Option(help="Latency of the network, in microseconds.")] = 50.0,
    bandwidth: Annotated[
        float, typer.Option(help="Bandwidth of the network, in gigabits per second.")
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Estimate the time and memory of training with many workers.

    fieldwise plan clicks.store --workers 4
    fieldwise plan --shape criteo --workers 8
    """
    from ..data.planted import SHAPES, synthetic
    from ..distributed.planning import Network, measured, plans

    n = 8 * batch_size
    if (data is None) == (shape is None):
        raise SettingError("give a store, or a shape: fieldwise plan --shape criteo --workers 4")
    network = Network(latency * 1e-6, bandwidth * 1e9 / 8)
    sizes: Sequence[int]
    if shape is not None:
        from ..layout import Layout

        if shape not in SHAPES and not all(part.strip().isdigit() for part in shape.split(",")):
            raise SettingError(f"shape={shape!r} is not criteo, avazu, or cardinalities: 100,20,7")
        given = shape if shape in SHAPES else [int(part) for part in shape.split(",")]
        table = synthetic(given, n)
        sizes, codes = table.sizes, next(iter(table.blocks()))[0][:n]
        layout = Layout.of(sizes, rank=rank, rank_base=rank_base)
    elif data is not None:
        from ..crossing import layout_for
        from ..data.store import Store
        from ..data.words import StoredWords
        from ..fitting import objective_of

        store = Store(locate(data))
        if any(slots > 1 for slots in store.schema.slots):
            raise SettingError("a plan is for fields of one value a row; this store has lists")
        words = StoredWords(store)
        layout = layout_for(words, objective_of(store.schema), rank=rank, rank_base=rank_base)
        sizes = words.sizes
        codes = store.read(0, min(n, store.n_rows))["codes"]
    machine = measured(codes, sizes, batch=batch_size, threads=threads)
    found = plans(layout, machine, workers, batch=batch_size, network=network)
    if as_json:
        typer.echo(json.dumps([one.facts() for one in found], indent=1))
        return
    typer.echo(
        f"{layout.n_parameters:,} parameters in {layout.n_rows:,} rows of {layout.width} columns; "
        f"workers of {machine.threads} threads"
    )
    for one in found:
        typer.echo(
            f"{one.n_workers} workers in {one.n_groups} groups: {one.columns} columns each at "
            f"most, {(one.table_bytes + one.other_bytes) / 1e9:.2f} GB a worker, "
            f"{one.sent_bytes / 1e3:,.1f} kB sent a step\n"
            f"  a step {1e3 * one.step_seconds:.2f} ms: {1e3 * one.work_seconds:.2f} work, "
            f"{1e3 * one.penalty_seconds:.2f} penalty, {1e3 * one.network_seconds:.2f} network; "
            f"{one.rows_per_second:,.0f} rows/s, {one.times_one:.2f} times one worker\n"
            f"  what takes longest is {one.bottleneck}"
        )
