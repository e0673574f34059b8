"""Commands that use a trained model: evaluate, predict, info; and demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Data, Format, Model, Separator, locate
from .screen import say, show_table

__all__ = ["demo", "evaluate", "info", "predict"]


def evaluate(
    model: Model,
    data: Data,
    format: Format = "auto",
    separator: Separator = None,
    as_json: AsJson = False,
) -> None:
    """How good a model is on a table that has the target.

    fieldwise evaluate clicks.model tomorrow.csv
    """
    from ..model import FieldwiseModel
    from ..predicting import evaluate_table

    loaded = FieldwiseModel.load(model)
    found = evaluate_table(loaded, locate(data), format=format, separator=separator)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    unseen = found.pop("unseen")
    for name, value in found.items():
        shown = f"{value:,.0f}" if name.startswith("rows") else f"{value:.4f}"
        typer.echo(f"{name.replace('_', ' '):20} {shown}")
    _tell_unseen(unseen)


def _tell_unseen(shares: dict[str, float]) -> None:
    for name, share in shares.items():
        typer.echo(f"{name}: {share:.2%} of rows have a value never seen in training", err=True)


def predict(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="A .parquet or .csv file to write.")],
    format: Format = "auto",
    separator: Separator = None,
) -> None:
    """Predict every row of a table: chances of classes, or numbers.

    fieldwise predict clicks.model tomorrow.csv --out chances.parquet
    """
    from ..model import FieldwiseModel
    from ..predicting import write_predictions

    loaded = FieldwiseModel.load(model)
    options = {"format": format, "separator": separator}
    n_rows, unseen = write_predictions(loaded, locate(data), out, **options)
    typer.echo(f"{out}: {n_rows:,} rows")
    _tell_unseen(unseen)


def info(model: Model) -> None:
    """What a model is: fields, importance, settings, metrics.

    fieldwise info clicks.model
    """
    from ..model import FieldwiseModel

    loaded = FieldwiseModel.load(model)
    sizes = dict(zip(loaded.schema.names, loaded.layout.sizes, strict=True))
    ranks = dict(zip(loaded.schema.names, loaded.layout.ranks, strict=True))
    rows = []
    for name, value in loaded.importance().items():
        field = loaded.schema[name]
        rows.append((name, field.shown_kind, f"{sizes[name]:,}", str(ranks[name]), f"{value:.4f}"))
    heads = ("field", "kind", "categories", "rank", "importance")
    show_table(str(model), heads, rows, words=2, spare=("kind",))
    say(f"{loaded.layout.n_parameters:,} parameters")
    if loaded.compression:
        change = loaded.compression["certificate"]["largest_change"]
        say(f"compressed: no score is more than {change:.3g} from what it was")
    for head, target in zip(loaded.objective.heads, loaded.schema.targets, strict=True):
        known = f", classes {', '.join(target.classes)}" if target.classes else ""
        say(f"learns {target.column}: {head.loss} loss{known}")
    for title, body in (("held out", loaded.metrics), ("settings", loaded.settings)):
        pairs = ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in body.items()
        )
        say(f"{title}: {pairs}")


def demo() -> None:
    """Train on a year of flights beside other methods: a first look.

    fieldwise demo
    """
    from ..demo import run_demo

    run_demo()
