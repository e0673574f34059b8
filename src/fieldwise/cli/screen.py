"""Terminal output of commands: lines and tables, whose names are never read as markup; and the
message of an interrupted command."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

__all__ = ["console", "interruptible", "say", "show_table", "shown_metrics"]

PIPED = 120  # columns without a terminal


def console(width: int = PIPED) -> Any:
    """The terminal; without one, lines of this width."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, highlight=False, markup=False)


def say(text: str) -> None:
    console().print(_plain(text))


def show_table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: int = 1,
    spare: Sequence[str] = (),
) -> None:
    """Print a table whose first `words` columns are text and whose others are numbers. Spare
    columns are dropped, one by one, if the terminal is too narrow for all."""
    to = console()
    left_out: list[str] = []
    table = _table(title, heads, rows, words, left_out)
    for name in spare:
        if to.measure(table).maximum < to.width:
            break
        left_out.append(name)
        table = _table(title, heads, rows, words, left_out)
    to.print(table)


def _table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: int,
    left_out: Sequence[str],
) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_plain(title)), title_justify="left", box=box.SIMPLE_HEAD)
    kept = [k for k, name in enumerate(heads) if name not in left_out]
    for k in kept:
        justify: Any = "left" if k < words else "right"
        table.add_column(Text(_plain(heads[k])), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_plain(row[k])) for k in kept))
    return table


def shown_metrics(found: dict[str, float]) -> str:
    """The two most important metrics of a model, as text."""
    names = ("logloss", "auc", "accuracy", "rmse", "mae", "deviance", "loss")
    words = [f"{name} {found[name]:.4f}" for name in names if name in found]
    return ", ".join(words[:2])


@contextmanager
def interruptible(words: str) -> Iterator[None]:
    """On Ctrl-C, end the command with a message that says what is left of its work."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {words}", err=True)
        raise typer.Exit(130) from None


def _plain(text: str) -> str:
    """Text without characters that control a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
