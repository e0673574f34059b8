"""The command line. Each command parses, calls one function of the library, and prints.

A user's mistake ends with exit code 2 and one or two lines on standard error. Nothing heavy is
imported before a command needs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__
from .errors import FieldwiseError, SettingError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Learn from tables of categories, field by field.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Data = Annotated[str, typer.Argument(help="A file, folder or glob; or 'flights', the example.")]
Format = Annotated[
    str, typer.Option(help="auto, csv, tsv, parquet, arrow, libffm, libsvm, criteo or avazu.")
]
Drop = Annotated[list[str] | None, typer.Option(help="A column to leave out. Repeatable.")]
Kind = Annotated[
    list[str] | None,
    typer.Option(
        help="COLUMN=KIND, where a guess is wrong: category, numeric, time, quantile, log2 or "
        "linear. Repeatable."
    ),
]
NoQuotes = Annotated[
    bool, typer.Option("--no-quotes", help="A quote in text is a character like any other.")
]
Separator = Annotated[
    str | None, typer.Option(help="Between cells of text, if not found by itself.")
]
MinCount = Annotated[
    int | None, typer.Option(min=1, help="Categories seen less often share a rare row.")
]
Weight = Annotated[str | None, typer.Option(help="The column of sample weights.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fieldwise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _locate(data: str) -> str:
    """'flights' is the bundled table unless there is a file of that name."""
    if data == "flights" and not Path(data).exists():
        from .data.datasets import flights_path

        return flights_path()
    return data


def _kinds(pairs: list[str] | None) -> dict[str, str]:
    kinds = {}
    for pair in pairs or []:
        column, sign, kind = pair.rpartition("=")
        if not sign or not column:
            raise SettingError(f"--kind {pair!r} is not COLUMN=KIND")
        kinds[column] = kind
    return kinds


@app.command()
def inspect(
    data: Data,
    target: Annotated[str | None, typer.Option(help="The column to learn.")] = None,
    format: Format = "auto",
    drop: Drop = None,
    kind: Kind = None,
    weight: Weight = None,
    separator: Separator = None,
    no_quotes: NoQuotes = False,
    min_count: MinCount = None,
    rank: Annotated[int, typer.Option(min=0, help="Rank the cost is worked out for.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at a table: what each column seems to be, and what a model of it would cost."""
    from .data.inspection import inspect_table

    found = inspect_table(
        _locate(data),
        format=format,
        target=target,
        weight=weight,
        drop=drop or [],
        kinds=_kinds(kind),
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
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
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
    console.print(table)
    cost = found["cost"]
    console.print(
        f"A model of rank {cost['rank']}: {cost['fields']} fields, {cost['rows']:,} rows, "
        f"{cost['parameters']:,} parameters, {cost['memory_mb']:,.0f} MB to train."
    )


@app.command()
def encode(
    data: Data,
    out: Annotated[Path, typer.Option(help="The folder of the store to write.")],
    target: Annotated[str | None, typer.Option(help="The column to learn.")] = None,
    format: Format = "auto",
    drop: Drop = None,
    kind: Kind = None,
    weight: Weight = None,
    separator: Separator = None,
    no_quotes: NoQuotes = False,
    min_count: MinCount = None,
    unseen: Annotated[
        str | None, typer.Option(help="For values never seen: mean, rare or error.")
    ] = None,
    bins: Annotated[int | None, typer.Option(min=1, help="Quantile bins of a number.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store.")] = False,
    append: Annotated[bool, typer.Option("--append", help="Add rows to a store.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Encode a table of any size into a store on disk, ready for training."""
    import time

    from .data import encode as encode_table
    from .data import load_vocabulary

    started = time.perf_counter()
    try:
        store = encode_table(
            _locate(data),
            out,
            target=target,
            format=format,
            drop=drop or [],
            kinds=_kinds(kind),
            weight=weight,
            separator=separator,
            quote=not no_quotes,
            overwrite=overwrite,
            append=append,
            show=False if quiet else None,
            min_count=min_count,
            unseen=unseen,
            n_bins=bins,
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


def main() -> None:
    """The entry point: a FieldwiseError is a message, not a traceback."""
    try:
        app()
    except FieldwiseError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(f"error: {error.filename or ''}: {error.strerror or error}", err=True)
        sys.exit(2)
