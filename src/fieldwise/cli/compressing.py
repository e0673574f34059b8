"""The command that makes a model smaller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ModelError
from .options import AsJson, Format, Model, Quiet, Separator, locate

__all__ = ["compress"]


def compress(
    model: Model,
    validation: Annotated[
        str,
        typer.Option(help="A table with the target, of rows that the model was not trained on."),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the smaller model to write.")],
    max_loss: Annotated[
        float, typer.Option(help="How much the loss on that table may rise; 0 changes nothing.")
    ] = 0.0005,
    format: Format = "auto",
    separator: Separator = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing model.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make a model as small as its loss on a table allows.

    fieldwise compress clicks.model --validation held_out.csv --out small.model
    """
    from ..compress import compress as make_smaller
    from ..model import FieldwiseModel
    from ..model_folder import check_replaceable

    if out.exists() and not overwrite:
        raise ModelError(f"{out} is there already; set --overwrite or choose another name")
    check_replaceable(out)
    loaded = FieldwiseModel.load(model)
    found = make_smaller(
        loaded,
        locate(validation),
        max_loss=max_loss,
        show=False if quiet else None,
        format=format,
        separator=separator,
    )
    found.model.save(out, overwrite=overwrite)
    if as_json:
        steps = [{**s.kept(), "rows_per_second": s.rows_per_second} for s in found.steps]
        typer.echo(json.dumps({"steps": steps, "certificate": dict(found.certificate)}, indent=1))
    elif not quiet:
        _show(out, found)


def _show(out: Path, found: Any) -> None:
    typer.echo(f"{'':10} {'bytes':>14} {'loss':>10} {'rows/s':>12}")
    for step in found.steps:
        typer.echo(
            f"{step.name:10} {step.n_bytes:>14,} {step.loss:>10.5f} {step.rows_per_second:>12,.0f}"
        )
    if len(found.steps) == 1:
        typer.echo(f"{out}: as it was; the loss allowed is less than any step adds")
        return
    typer.echo(
        f"{out}: {found.times_smaller:.1f} times smaller, loss {found.loss_added:+.5f}; no score "
        f"can have changed by more than {found.certificate['largest_change']:.3g}"
    )
    within = found.certificate.get("linear_within")
    if within:
        typer.echo(f"(of rows whose linear numbers are within {within:g} standard deviations)")
