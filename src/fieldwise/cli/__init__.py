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
import typer.core

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
    training,
    updating,
)
from .signals import UNDONE, signals_heard

__all__ = ["app", "main"]


class _Command(typer.core.TyperCommand):
    """A command whose help shows flags without a value: --quiet, not --quiet <bool>."""

    def get_params(self, ctx: Any) -> Any:
        return _bare_flags(super().get_params(ctx))


class _Group(typer.core.TyperGroup):
    """The same for options of the program itself."""

    def get_params(self, ctx: Any) -> Any:
        return _bare_flags(super().get_params(ctx))


def _bare_flags(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0, done; 2, a mistake, explained on standard error; 130, interrupted by "
    "Ctrl-C; 143, ended by SIGTERM.",
)

PANELS = {
    "Look at a table": (tables.inspect, tables.encode),
    "Train": (models.demo, training.train, comparing.tune, comparing.compare),
    "Understand a model": (models.info, models.evaluate, explaining.explain, explaining.category),
    "Put it to work": (models.predict, serving.serve, exporting.export, compressing.compress),
    "Keep it fresh": (updating.update, updating.versions, updating.rollback),
    "Study": (comparing.bound, comparing.reproduce, planning.plan),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(cls=_Command, rich_help_panel=panel)(command)

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


def _is_short_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; a thread that cannot start lacks memory for its stack."""
    return isinstance(error, MemoryError) or str(error) == "can't start new thread"


def _short_of_memory(error: BaseException) -> str:
    about = f": {error}" if str(error) else ""
    return f"there is not enough memory{about}. Existing files are unchanged"


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
    except (MemoryError, RuntimeError) as error:
        if not _is_short_of_memory(error):
            raise
        typer.echo(f"error: {_short_of_memory(error)}", err=True)
        sys.exit(2)
    except SystemExit as ended:
        cause = getattr(ended.__context__, "__cause__", None)  # typer turns it into an exit
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
    """The message with settings written as options of the command that was called: preset='glas'
    becomes --preset 'glas'."""
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
