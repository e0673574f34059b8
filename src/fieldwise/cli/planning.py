"""The command that estimates the time and memory of training with many workers."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SettingError
from .options import AsJson, Format, Target, locate

if TYPE_CHECKING:
    from ..data.store import Store
    from ..layout import Layout

__all__ = ["plan"]


def plan(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE", help="A store, or a table to encode; or leave it out, with --shape."
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="criteo, avazu, or the number of categories of each field, separated by commas."
        ),
    ] = None,
    target: Target = None,
    format: Format = "auto",
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
    fieldwise plan clicks.csv --target clicked --workers 4
    fieldwise plan --shape criteo --workers 8
    """
    from ..distributed.planning import Network, measured, plans

    if (data is None) == (shape is None):
        raise SettingError("give a table, or a shape: fieldwise plan --shape criteo --workers 4")
    network = Network(latency * 1e-6, bandwidth * 1e9 / 8)
    ranks = {"rank": rank, "rank_base": rank_base}
    n = 8 * batch_size
    if shape is not None:
        layout, rows = _of_shape(shape, n, ranks)
    else:
        assert data is not None
        with TemporaryDirectory() as folder:
            layout, rows = _of_store(_stored(data, folder, target, format), n, ranks)
    about: dict[str, Any] = {"slots": layout.slots, "batch": batch_size, "threads": threads}
    machine = measured(rows["codes"], layout.sizes, values=rows["values"], **about)
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
            f"{_counted(one.n_workers, 'worker')} in {_counted(one.n_groups, 'group')}: "
            f"{one.columns} columns each at most, "
            f"{(one.table_bytes + one.other_bytes) / 1e9:.2f} GB a worker, "
            f"{one.sent_bytes / 1e3:,.1f} kB sent a step\n"
            f"  a step {1e3 * one.step_seconds:.2f} ms: {1e3 * one.work_seconds:.2f} work, "
            f"{1e3 * one.penalty_seconds:.2f} penalty, {1e3 * one.network_seconds:.2f} network; "
            f"{one.rows_per_second:,.0f} rows/s, {one.times_one:.2f} times one worker\n"
            f"  what takes longest is {one.bottleneck}"
        )


def _of_shape(shape: str, n: int, ranks: dict[str, Any]) -> tuple[Layout, dict[str, Any]]:
    """The layout of fields of so many categories, and n rows drawn for it."""
    from ..data.planted import SHAPES, synthetic
    from ..layout import Layout

    if shape not in SHAPES and not all(part.strip().isdigit() for part in shape.split(",")):
        raise SettingError(f"shape={shape!r} is not criteo, avazu, or cardinalities: 100,20,7")
    table = synthetic(shape if shape in SHAPES else [int(part) for part in shape.split(",")], n)
    codes = next(iter(table.blocks()))[0][:n]
    return Layout.of(table.sizes, **ranks), {"codes": codes, "values": None}


def _stored(data: str, folder: str, target: list[str] | None, format: str) -> Store:
    from ..data.encoding import encode
    from ..data.store import Store, is_store

    found = locate(data)
    if is_store(found):
        return Store(found)
    if not target:
        raise SettingError(f"{data} is not a store: say what to learn, with --target COLUMN")
    return encode(found, Path(folder) / "store", target=target, format=format)


def _of_store(store: Store, n: int, ranks: dict[str, Any]) -> tuple[Layout, dict[str, Any]]:
    """The layout of the model that would be trained on a store, and its first n rows."""
    from ..crossing import layout_for
    from ..data.shuffle import wide_values
    from ..data.words import StoredWords
    from ..fitting import objective_of

    layout = layout_for(StoredWords(store), objective_of(store.schema), **ranks)
    rows = store.read(0, min(n, store.n_rows))
    values = wide_values(rows["codes"], rows.get("values"), store.schema.valued)
    return layout, {"codes": rows["codes"], "values": values}


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
