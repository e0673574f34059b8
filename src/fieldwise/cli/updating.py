"""Commands that keep a model fresh: update it with new rows, list its versions, put one back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import (
    AsJson,
    Data,
    Device,
    Format,
    MinCount,
    Model,
    NoQuotes,
    Quiet,
    Separator,
    Threads,
    locate,
)
from .screen import show_table, shown_metrics

__all__ = ["rollback", "update", "versions"]


def update(
    model: Model,
    data: Data,
    forget: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of what was learned before that is forgotten."),
    ] = 0.0,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Most epochs over the new rows; 1 unless set.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Adagrad's step; unless set, 0.4 times the model's own.")
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Share of the new rows held out; unless set, 0.1, or none if they are few."
        ),
    ] = None,
    no_validation: Annotated[
        bool, typer.Option("--no-validation", help="Hold out no rows.")
    ] = False,
    min_count: MinCount = None,
    allow_drift: Annotated[
        bool,
        typer.Option(
            "--allow-drift", help="Update even if many values are new, or all are missing."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the new model here and leave the old one as it is.")
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Number of earlier versions to keep.")] = 5,
    format: Format = "auto",
    separator: Separator = None,
    no_quotes: NoQuotes = False,
    device: Device = None,
    threads: Threads = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go on training with new rows; the model before is kept.

    fieldwise update clicks.model today.csv
    fieldwise update clicks.model today.csv --forget 0.1 --out candidate.model
    """
    from ..errors import SettingError
    from ..train import Running
    from ..updating import update_saved

    if no_validation and validation is not None:
        raise SettingError("--validation and --no-validation: choose one of them")
    about, number = update_saved(
        model,
        locate(data),
        out=out,
        keep=keep,
        forget=forget,
        epochs=epochs,
        learning_rate=learning_rate,
        validation=0.0 if no_validation else validation,
        min_count=min_count,
        allow_drift=allow_drift,
        running=Running(
            device=device or "auto", n_jobs=threads, show=False if quiet or as_json else None
        ),
        format=format,
        separator=separator,
        quote=not no_quotes,
    )
    if as_json:
        typer.echo(json.dumps({**about, "version": number}, indent=1))
    elif not quiet:
        for line in _told(about):
            typer.echo(line)
        kept = f"; the one before is version {number}" if number else ""
        typer.echo(f"{out or model}: {'as it was' if not about['rows'] else 'updated'}{kept}")


def _told(about: dict[str, Any]) -> list[str]:
    """Lines that say what an update did."""
    if not about["rows"]:
        return ["no rows"]
    new = about["new_categories"]
    shown = ", ".join(f"{n:,} of {name}" for name, n in list(new.items())[:8])
    lines = [f"{about['rows']:,} new rows; new categories: {shown or 'none'}"]
    if about["before"]:
        before, after = (shown_metrics(about[name]) for name in ("before", "after"))
        lines.append(f"held out: {before} before, {after} after")
        if about["table"] == "kept":
            lines.append("training was no better there: the table is kept, counts are added")
    if "trees" in about:
        lines.append(f"trees: {about['trees']}")
    return lines


def versions(model: Model, as_json: AsJson = False) -> None:
    """List the versions of a model that are kept, and the one in use.

    fieldwise versions clicks.model
    """
    from ..updating.versions import facts
    from ..updating.versions import versions as list_versions

    found = list_versions(model)
    if as_json:
        typer.echo(json.dumps([facts(version) for version in found], indent=1))
        return
    rows = [
        (
            version.number or "in use",
            version.id,
            version.when.strftime("%Y-%m-%d %H:%M:%S UTC"),
            shown_metrics(version.metrics),
            f"{version.rows:,}",
            str(version.updates),
        )
        for version in found
    ]
    heads = ("version", "id", "when", "held out", "rows", "updates")
    show_table("", heads, rows, words=4, spare=("id", "updates"))


def rollback(
    model: Model,
    to: Annotated[
        str | None, typer.Option(help="The number of a version; the last one unless set.")
    ] = None,
) -> None:
    """Put a version of a model back, and keep the one it replaces.

    fieldwise rollback clicks.model
    fieldwise rollback clicks.model --to 3
    """
    from ..updating.versions import rollback as put_back

    found = put_back(model, to)
    typer.echo(f"{model}: {found.id}, of {found.when:%Y-%m-%d %H:%M:%S UTC}, is back")
