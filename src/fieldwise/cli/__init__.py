"""The command line. Each command parses, calls one function of the library, and prints.

A user's mistake ends with exit code 2 and one or two lines on standard error. Nothing heavy is
imported before a command needs it.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .. import __version__
from ..errors import FieldwiseError
from . import (
    comparing,
    compressing,
    explaining,
    exporting,
    models,
    planning,
    serving,
    tables,
    updating,
)

__all__ = ["app", "main"]

app = typer.Typer(
    help="Learn from tables of categories, field by field.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


for command in (
    *(tables.inspect, tables.encode),
    *(models.train, models.evaluate, models.predict, models.info, models.demo),
    *(explaining.explain, explaining.category),
    exporting.export,
    *(updating.update, updating.versions, updating.rollback),
    *(comparing.compare, comparing.tune, comparing.reproduce, comparing.bound),
    compressing.compress,
    serving.serve,
    planning.plan,
):
    app.command()(command)


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
