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
Clicks = Annotated[
    str | None, typer.Option(help="A column of counts to learn as shares of --impressions.")
]
Impressions = Annotated[str | None, typer.Option(help="The column of trials of --clicks.")]
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
    clicks: Clicks = None,
    impressions: Impressions = None,
    weight: Weight = None,
    separator: Separator = None,
    no_quotes: NoQuotes = False,
    min_count: MinCount = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Rank the cost is worked out for.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at a table: what each column seems to be, and what a model of it would cost."""
    from .data.inspection import inspect_table

    found = inspect_table(
        _locate(data),
        format=format,
        **_learned(target, clicks, impressions),
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
    clicks: Clicks = None,
    impressions: Impressions = None,
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
            **_learned(target, clicks, impressions),
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


@app.command()
def train(
    data: Data,
    out: Annotated[Path, typer.Option(help="The folder of the model to write.")],
    target: Annotated[str | None, typer.Option(help="The column to learn.")] = None,
    format: Format = "auto",
    drop: Drop = None,
    kind: Kind = None,
    clicks: Clicks = None,
    impressions: Impressions = None,
    weight: Weight = None,
    separator: Separator = None,
    no_quotes: NoQuotes = False,
    min_count: MinCount = None,
    loss: Annotated[
        str | None, typer.Option(help="Of numbers: squared, absolute, huber or poisson.")
    ] = None,
    combine: Annotated[
        str | None, typer.Option(help="How fields combine: sum, weighted or vote.")
    ] = None,
    members: Annotated[int | None, typer.Option(help="Models trained at once, averaged.")] = None,
    bagging: Annotated[
        bool, typer.Option("--bagging", help="Each member on rows drawn with replacement.")
    ] = False,
    aggregate: Annotated[
        bool, typer.Option("--aggregate", help="Take equal rows together, in memory.")
    ] = False,
    sampling_rate: Annotated[
        float | None, typer.Option(help="The share of the first class's rows that was kept.")
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(help="Rank of every field's models; 32 unless set, less for large tables."),
    ] = None,
    rank_base: Annotated[
        float | None, typer.Option(help="Ranks by the logarithm of a field's size instead.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Adagrad's step.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of rows in a batch.")] = None,
    penalty: Annotated[
        float | None, typer.Option(help="Weight of the variance and mean-norm constraints.")
    ] = None,
    max_variance: Annotated[
        float | None, typer.Option(help="A hard bound of every field's variance.")
    ] = None,
    max_mean: Annotated[
        float | None, typer.Option(help="A hard bound of the norm of every field's mean.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows a step.")] = None,
    reg_every: Annotated[int | None, typer.Option(help="Steps between penalties.")] = None,
    epochs: Annotated[int | None, typer.Option(help="At most so many.")] = None,
    patience: Annotated[int | None, typer.Option(help="Epochs without gain at the end.")] = None,
    averages: Annotated[
        int | None, typer.Option(help="Tables of an epoch whose mean is kept; 1: the last.")
    ] = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of rows held out; a tenth unless set.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="random, time:FIELD or group:FIELD: which rows are held out.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed, the same model.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="All cores unless set.")] = None,
    paper: Annotated[
        str | None, typer.Option(help="criteo or avazu: the paper's preprocessing and settings.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with these options; those given here win.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run that was stopped left off.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
) -> None:
    """Train a model on a table or a store and save it."""
    from .fitting import train_table
    from .train import Running

    given = {
        k: v
        for k, v in locals().items()
        if k in (*TRAIN_NAMES, *READ_NAMES, *FIT_NAMES) and v is not None and v is not False
    }
    reading, fitting = _train_options(given, config)
    model = train_table(
        _locate(data),
        out,
        reading=reading,
        overwrite=overwrite,
        running=Running(
            n_jobs=fitting.pop("threads", None),
            resume=resume,
            show=False if quiet else None,
            callbacks=[] if quiet else [_print_epoch],
        ),
        **fitting,
    )
    if not quiet:
        typer.echo(
            f"{out}: {model.layout.n_parameters:,} parameters; on the held-out rows "
            f"{_shown(model.metrics)}"
        )


def _shown(found: dict[str, float]) -> str:
    """The figures that matter most, of any task."""
    names = ("logloss", "auc", "accuracy", "rmse", "mae", "deviance", "loss")
    words = [f"{name} {found[name]:.4f}" for name in names if name in found]
    return ", ".join(words[:2])


TRAIN_NAMES = (
    "learning_rate", "weight_decay", "penalty", "batch_size", "reg_every", "epochs", "patience",
    "averages", "seed", "bagging", "max_variance", "max_mean",
)  # fmt: skip
READ_NAMES = (
    "target", "clicks", "impressions", "format", "drop", "kind", "weight", "separator",
    "no_quotes", "min_count",
)  # fmt: skip
FIT_NAMES = (
    "rank", "rank_base", "validation", "split", "loss", "combine", "members", "sampling_rate",
    "aggregate",
    "threads", "paper",
)  # fmt: skip


def _learned(target: str | None, clicks: str | None, impressions: str | None) -> dict[str, Any]:
    """What to learn, as `encode` takes it."""
    if (clicks is None) != (impressions is None):
        raise SettingError("--clicks and --impressions go together")
    if clicks is not None and target is not None:
        raise SettingError(f"--target {target} and --clicks {clicks}: name one of them")
    return {"target": target or clicks, "trials": impressions}


def _train_options(
    given: dict[str, Any], config: Path | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What goes to `encode`, and what to `fit_store`."""
    from .fitting import PAPER
    from .train import TrainSettings

    known = (*TRAIN_NAMES, *READ_NAMES, *FIT_NAMES)
    if config is not None:
        import tomllib

        try:
            written = tomllib.loads(config.read_text())
        except tomllib.TOMLDecodeError as error:
            raise SettingError(f"{config} is not TOML: {error}") from error
        unknown = [k for k in written if k not in known]
        if unknown:
            raise SettingError(f"{config}: {unknown[0]!r} is not an option of train")
        given = {**written, **given}
    if given.get("format") == "auto":
        del given["format"]
    paper = given.pop("paper", None)
    if paper is not None:
        if paper not in PAPER:
            raise SettingError(f"paper={paper!r} is not one of {', '.join(PAPER)}")
        given = {"format": paper, **PAPER[paper], **given}
    kinds = given.pop("kind", [])
    quote = not given.pop("no_quotes", False)
    roles = _learned(*(given.pop(k, None) for k in ("target", "clicks", "impressions")))
    reading: dict[str, Any] = {k: given.pop(k) for k in READ_NAMES if k in given} | roles
    reading["kinds"] = kinds if isinstance(kinds, dict) else _kinds(kinds)
    reading["quote"] = quote
    settings = TrainSettings(**{k: given.pop(k) for k in TRAIN_NAMES if k in given})
    if "members" in given:
        given["n_members"] = given.pop("members")
    return reading, {"settings": settings, **given}


def _print_epoch(record: dict[str, Any]) -> None:
    words = [f"step {record['learning_rate']:g}, epoch {record['epoch']}"]
    words.append(f"train {record['train_loss']:.4f}")
    if "loss" in record:
        words.append(f"held out {_shown(record)}")
    words.append(f"{record['rows_per_second']:,.0f} rows/s")
    typer.echo(", ".join(words), err=True)


Model = Annotated[Path, typer.Argument(help="The folder of a model.")]


@app.command()
def evaluate(
    model: Model,
    data: Data,
    format: Format = "auto",
    separator: Separator = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """How good a model is on a table: logloss, AUC, normalised entropy, calibration."""
    from .model import FieldwiseModel
    from .predicting import evaluate_table

    loaded = FieldwiseModel.load(model)
    found = evaluate_table(loaded, _locate(data), format=format, separator=separator)
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


@app.command()
def predict(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="A .parquet or .csv file to write.")],
    format: Format = "auto",
    separator: Separator = None,
) -> None:
    """The chance of the second class, or of every class, or a number, for every row of a table."""
    from .model import FieldwiseModel
    from .predicting import write_predictions

    loaded = FieldwiseModel.load(model)
    options = {"format": format, "separator": separator}
    n_rows, unseen = write_predictions(loaded, _locate(data), out, **options)
    typer.echo(f"{out}: {n_rows:,} rows")
    _tell_unseen(unseen)


@app.command()
def info(model: Model) -> None:
    """What a model is: its fields, their importance, how it was trained and how good it was."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from .model import FieldwiseModel

    loaded = FieldwiseModel.load(model)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    table = Table(title=str(model), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("field")
    for name in ("kind", "categories", "rank", "importance"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    sizes = dict(zip(loaded.schema.names, loaded.layout.sizes, strict=True))
    ranks = dict(zip(loaded.schema.names, loaded.layout.ranks, strict=True))
    for name, value in loaded.importance().items():
        field = loaded.schema[name]
        kind = field.binning or field.part or field.kind
        table.add_row(name, kind, f"{sizes[name]:,}", str(ranks[name]), f"{value:.4f}")
    console.print(table)
    head = loaded.objective.heads[0]
    learned = f"classes {', '.join(loaded.classes)}" if loaded.classes else f"{head.loss} loss"
    console.print(f"{loaded.layout.n_parameters:,} parameters, {learned}")
    for title, body in (("held out", loaded.metrics), ("settings", loaded.settings)):
        pairs = ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in body.items()
        )
        console.print(f"{title}: {pairs}")


@app.command()
def demo() -> None:
    """Train on a year of flights beside logistic regression and LightGBM, and compare."""
    from .demo import run_demo

    run_demo()


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
