"""The command that writes a model in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Model

__all__ = ["export"]


def export(
    model: Model,
    to: Annotated[str, typer.Option(help="The format: onnx, sql or python.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    missing: Annotated[
        str | None, typer.Option(help="onnx: the text that means a missing value; '' unless set.")
    ] = None,
    contributions: Annotated[
        bool | None,
        typer.Option(
            "--contributions/--no-contributions",
            help="onnx: whether to output what every field adds to the score; unless set, where "
            "the model can.",
        ),
    ] = None,
    dialect: Annotated[
        str | None, typer.Option(help="sql: duckdb (unless set) or postgres.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="sql: the table to score; input unless set.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="sql: a column that the view shows. Repeatable; all unless set."),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="sql: the prefix of all names; fieldwise_ unless set.")
    ] = None,
) -> None:
    """Write a model as ONNX, SQL or a Python file of its own.

    fieldwise export clicks.model --to onnx --out clicks.onnx
    fieldwise export clicks.model --to sql --dialect postgres --out clicks.sql
    """
    from ..export import export as write

    said = {
        **{"missing": missing, "contributions": contributions},
        **{"dialect": dialect, "table": table, "key": key or None, "prefix": prefix},
    }
    options: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    write(model, out, to, **options)
    typer.echo(f"{out}: {out.stat().st_size / 1e6:,.1f} MB of {to}")
