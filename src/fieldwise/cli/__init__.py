"""The command line. Each command parses, calls one function of the library, and prints.

A user's mistake ends with exit code 2 and one or two lines on standard error. Nothing heavy is
imported before a command needs it.
"""

from __future__ import annotations

import io
import re
import sys
import warnings
from typing import Annotated, Any

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
from .signals import UNDONE, signals_heard

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0, it is done; 2, a mistake, told on standard error; 130, interrupted.",
)

PANELS = {
    "Look at a table": (tables.inspect, tables.encode),
    "Train": (models.demo, models.train, comparing.tune, comparing.compare),
    "Understand a model": (models.info, models.evaluate, explaining.explain, explaining.category),
    "Put it to work": (models.predict, serving.serve, exporting.export, compressing.compress),
    "Keep it fresh": (updating.update, updating.versions, updating.rollback),
    "Study": (comparing.bound, comparing.reproduce, planning.plan),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)

# Settings of the library whose options have other names.
OTHER_NAMES = {
    "crosses": "--cross",
    "n_members": "--members",
    "n_bins": "--bins",
    "n_jobs": "--threads",
    "quote": "--no-quotes",
}


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
    """Learn from tables of categories, field by field.

    fieldwise inspect clicks.csv --target clicked
    fieldwise train clicks.csv --target clicked --out clicks.model
    fieldwise explain clicks.model --out report.html
    fieldwise predict clicks.model tomorrow.csv --out chances.csv
    """


def _short_of_memory(error: MemoryError) -> str:
    about = f": {error}" if str(error) else ""
    return f"there is not enough memory{about}. What was there before is as it was"


def _warned(message: Any, *_: Any, **__: Any) -> str:
    return f"warning: {message}\n"


def main() -> None:
    """The entry point: a FieldwiseError is a message, not a traceback."""
    form, warnings.formatwarning = warnings.formatwarning, _warned
    if sys.stdout is None:  # a shell's >&-
        sys.stdout = io.StringIO()
    elif isinstance(sys.stdout, io.TextIOWrapper):  # which may not know all letters, as in LANG=C
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with signals_heard():
            app()
    except FieldwiseError as error:
        typer.echo(f"error: {_as_typed(str(error), sys.argv[1:])}", err=True)
        sys.exit(2)
    except MemoryError as error:
        typer.echo(f"error: {_short_of_memory(error)}", err=True)
        sys.exit(2)
    except SystemExit as ended:
        cause = getattr(ended.__context__, "__cause__", None)  # of the exit that typer makes of it
        if isinstance(cause, KeyboardInterrupt):
            typer.echo(f"interrupted; {UNDONE}", err=True)
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {where}{error.strerror or error}", err=True)
        sys.exit(2)
    finally:
        warnings.formatwarning = form


def _as_typed(message: str, arguments: list[str]) -> str:
    """The settings of a message as the options of the command that was called: preset='glas' is
    --preset 'glas'."""
    group: Any = typer.main.get_command(app)
    command = next((group.commands[word] for word in arguments if word in group.commands), group)
    options = {p.name: p.opts[0] for p in command.params if p.opts[0].startswith("--")}
    options |= {k: v for k, v in OTHER_NAMES.items() if v in options.values()}
    for name, option in options.items():
        # A folder may be called seed=3.
        flag = "False" if option.startswith("--no-") else "True"
        message = re.sub(rf"(?<![\w./\\-]){name}={flag}\b(?![/\\])", option, message)
        message = re.sub(rf"(?<![\w./\\-]){name}=(?!\[|\S*[/\\])", f"{option} ", message)
    return message
