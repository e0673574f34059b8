"""The command that trains a model, and what its options mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ..errors import SettingError, not_one_of
from .options import (
    READ_NAMES,
    THE_MODEL,
    THE_RUNNING,
    THE_TRAINING,
    Bins,
    Clicks,
    Cluster,
    Cross,
    Data,
    Device,
    Drop,
    Format,
    Impressions,
    Kind,
    MaxValues,
    MinCount,
    NoQuotes,
    Pooling,
    Preset,
    Quiet,
    Separator,
    Target,
    Threads,
    Unseen,
    Weight,
    Workers,
    crosses_of,
    locate,
    on_ray,
    reading_of,
)
from .screen import interruptible, shown_metrics

__all__ = ["train"]


def train(
    data: Data,
    out: Annotated[Path, typer.Option(help="The folder of the model to write.")],
    target: Target = None,
    format: Format = "auto",
    drop: Drop = None,
    kind: Kind = None,
    clicks: Clicks = None,
    impressions: Impressions = None,
    weight: Weight = None,
    separator: Separator = None,
    no_quotes: NoQuotes = False,
    min_count: MinCount = None,
    unseen: Unseen = None,
    bins: Bins = None,
    pooling: Pooling = None,
    max_values: MaxValues = None,
    preset: Preset = None,
    cross: Cross = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="For a target of numbers: squared, absolute, huber or poisson.", **THE_MODEL
        ),
    ] = None,
    combine: Annotated[
        str | None,
        typer.Option(
            help="How the fields' scores combine: sum, weighted, vote, weighted_vote or boosted.",
            **THE_MODEL,
        ),
    ] = None,
    component: Annotated[
        str | None,
        typer.Option(
            help="The model of a category: linear, or fm (a factorisation machine; slow).",
            **THE_MODEL,
        ),
    ] = None,
    members: Annotated[
        int | None, typer.Option(help="Number of models to train at once and average.", **THE_MODEL)
    ] = None,
    bagging: Annotated[
        bool,
        typer.Option(
            "--bagging", help="Train each member on rows drawn with replacement.", **THE_MODEL
        ),
    ] = False,
    aggregate: Annotated[
        bool,
        typer.Option(
            "--aggregate",
            help="Train on each distinct row once, weighted (in memory).",
            **THE_TRAINING,
        ),
    ] = False,
    sampling_rate: Annotated[
        float | None,
        typer.Option(
            help="Share of the negatives (the first class) that was kept when they were thinned "
            "out.",
            **THE_TRAINING,
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            help="Rank of every field's models; 32 unless set, less for large tables.", **THE_MODEL
        ),
    ] = None,
    rank_base: Annotated[
        float | None,
        typer.Option(
            help="Instead: ranks grow as the logarithm, to this base, of a field's size.",
            **THE_MODEL,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Adagrad's step; unless set, several are tried.", **THE_TRAINING),
    ] = None,
    shrinkage: Annotated[
        float | None,
        typer.Option(
            help="Pull of weights to 0, stronger for rarer categories; adapts unless set.",
            **THE_TRAINING,
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(
            help="The paper's decay, the same for every row in a batch; replaces --shrinkage.",
            **THE_TRAINING,
        ),
    ] = None,
    penalty: Annotated[
        float | None,
        typer.Option(
            help="Weight of the penalty that holds a field's models together; 1e-5 unless set.",
            **THE_TRAINING,
        ),
    ] = None,
    max_variance: Annotated[
        float | None, typer.Option(help="Hard upper bound on every field's variance.", **THE_MODEL)
    ] = None,
    max_mean: Annotated[
        float | None,
        typer.Option(
            help="Hard upper bound on the squared norm of every field's mean model.", **THE_MODEL
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Rows per step; 2048 unless set, fewer for small tables.", **THE_TRAINING
        ),
    ] = None,
    reg_every: Annotated[
        int | None,
        typer.Option(help="Steps between two applications of the penalty.", **THE_TRAINING),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Most epochs to train; 30 unless set.", **THE_TRAINING)
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after this many epochs without gain; 2 unless set.", **THE_TRAINING
        ),
    ] = None,
    averages: Annotated[
        int | None,
        typer.Option(
            help="Snapshots of an epoch that are averaged; 8 unless set, 1 keeps the last.",
            **THE_TRAINING,
        ),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Share of rows held out; 0.1 unless set.", **THE_TRAINING),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Which rows are held out: random, time:FIELD (the latest) or group:FIELD (whole "
            "categories).",
            **THE_TRAINING,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Random seed; the same seed gives the same model.", **THE_TRAINING),
    ] = None,
    device: Device = None,
    half: Annotated[
        bool,
        typer.Option(
            "--half", help="Keep the table of parameters in bfloat16 (GPU only).", **THE_MODEL
        ),
    ] = False,
    threads: Threads = None,
    cluster: Cluster = None,
    workers: Workers = None,
    groups: Annotated[
        int,
        typer.Option(
            help="Groups of workers: each group holds all columns, and they share the rows.",
            **THE_RUNNING,
        ),
    ] = 1,
    paper: Annotated[
        str | None,
        typer.Option(help="Use the paper's preprocessing and settings for criteo or avazu."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with these options; the command line wins.")
    ] = None,
    log_to: Annotated[
        str | None,
        typer.Option(help="Log settings and losses to mlflow or tensorboard.", **THE_RUNNING),
    ] = None,
    log_dir: Annotated[
        str | None,
        typer.Option(help="Folder for --log-to, or a tracking URI of MLflow.", **THE_RUNNING),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing model.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on a table or a store, and save it.

    fieldwise train clicks.csv --target clicked --out clicks.model
    fieldwise train clicks.csv --target clicked --out best.model --preset best
    fieldwise train clicks.store --out clicks.model --split time:day

    Ctrl-C keeps the best so far; after a kill the same command with --resume continues.
    """
    from ..train import Running

    train_table = _trainer(cluster, workers, groups)
    loggers = _loggers(log_to, log_dir, out.name)
    given = {
        k: v
        for k, v in locals().items()
        if k in (*TRAIN_NAMES, *READ_NAMES, *FIT_NAMES) and v is not None and v is not False
    }
    reading, fitting = _train_options(given, config)
    running = Running(
        device=fitting.pop("device", "auto"),
        n_jobs=fitting.pop("threads", None),
        resume=resume,
        show=False if quiet else None,
        callbacks=[*loggers, *([] if quiet else [_print_epoch])],
    )
    about = {"reading": reading, "overwrite": overwrite, "running": running}
    with interruptible(f"the same command with --resume continues ({out})"):
        model = train_table(locate(data), out, **about, **fitting)
    if not quiet and model is not None:
        typer.echo(
            f"{out}: {model.layout.n_parameters:,} parameters; on the held-out rows "
            f"{shown_metrics(model.metrics)}"
        )


def _trainer(cluster: str | None, workers: int | None, groups: int) -> Callable[..., Any]:
    """The function that trains: in this process, on a launcher's workers, or on a cluster's."""
    from .. import distributed, fitting

    if on_ray(cluster, workers):
        from ..distributed.ray import train_on_ray

        return partial(train_on_ray, n_workers=2 if workers is None else workers, n_groups=groups)
    if distributed.world() is not None:
        return partial(distributed.train_table, n_groups=groups)
    if groups != 1:
        raise SettingError("--groups goes with several workers: torchrun, or --cluster ray")
    return fitting.train_table


def _loggers(log_to: str | None, log_dir: str | None, name: str) -> list[Any]:
    from ..callbacks import MLflowLogger, TensorBoardLogger

    if log_to is None:
        if log_dir is not None:
            raise SettingError(f"--log-dir {log_dir} goes with --log-to mlflow or tensorboard")
        return []
    if log_to == "mlflow":
        return [MLflowLogger(log_dir, name=name)]
    if log_to == "tensorboard":
        return [TensorBoardLogger(log_dir or "runs", name=name)]
    raise not_one_of(f"log_to={log_to!r}", log_to, ("mlflow", "tensorboard"))


TRAIN_NAMES = (
    "learning_rate", "shrinkage", "weight_decay", "penalty", "batch_size", "reg_every", "epochs",
    "patience", "averages", "seed", "bagging", "max_variance", "max_mean", "half",
)  # fmt: skip
FIT_NAMES = (
    "rank", "rank_base", "validation", "split", "loss", "combine", "component", "members",
    "sampling_rate", "aggregate", "device", "threads", "paper", "preset", "cross",
)  # fmt: skip


def _train_options(
    given: dict[str, Any], config: Path | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of `encode`, and those of `fit_store`."""
    from ..fitting import PAPER
    from ..train import TrainSettings

    known = (*TRAIN_NAMES, *READ_NAMES, *FIT_NAMES)
    if config is not None:
        given = {**_read_config(config, known), **given}
    paper = given.pop("paper", None)
    if paper is not None:
        if paper not in PAPER:
            raise not_one_of(f"paper={paper!r}", paper, PAPER)
        if given.get("format", "auto") == "auto":
            given["format"] = paper
        given = {**PAPER[paper], **given}
    reading = reading_of(given)
    settings = TrainSettings(**{k: given.pop(k) for k in TRAIN_NAMES if k in given})
    if "cross" in given:
        given["crosses"] = crosses_of(given.pop("cross"))
    if "members" in given:
        given["n_members"] = given.pop("members")
    return reading, {"settings": settings, **given}


def _read_config(config: Path, known: Sequence[str]) -> dict[str, Any]:
    """The options in a file, checked to have the types of the command line."""
    import tomllib

    try:
        written = tomllib.loads(config.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{config} is not TOML: {error}") from error
    unknown = [k for k in written if k not in known]
    if unknown:
        raise SettingError(f"{config}: {unknown[0]!r} is not an option of train")
    hints = get_type_hints(train, include_extras=True)
    for name, value in written.items():
        kind, about = get_args(hints[name])
        kind = next((k for k in get_args(kind) if k is not type(None)), kind)
        if not _is_of(kind, value) and not (name in ("kind", "cross") and _is_nested(name, value)):
            word = KIND_WORDS.get(kind, "a list of texts")
            raise SettingError(f"{config}: {name} = {value!r} is not {word}")
        if about.min is not None and value < about.min:
            raise SettingError(f"{config}: {name}={value} must be at least {about.min}")
    return written


KIND_WORDS: dict[Any, str] = {
    **{bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}
}


def _is_of(kind: Any, value: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and abs(value) < float("inf")
    if kind in (bool, int, str):
        return type(value) is kind
    texts = value if isinstance(value, list) else [value]
    return all(isinstance(text, str) for text in texts)


def _is_nested(name: str, value: Any) -> bool:
    """Whether kinds are a table of columns, or crosses lists of fields."""
    if name == "kind":
        return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    return isinstance(value, list) and all(_is_of(list, cross) for cross in value)


def _print_epoch(record: dict[str, Any]) -> None:
    words = [f"step {record['learning_rate']:g}, epoch {record['epoch']}"]
    words.append(f"train {record['train_loss']:.4f}")
    if "loss" in record:
        words.append(f"held out {shown_metrics(record)}")
    words.append(f"{record['rows_per_second']:,.0f} rows/s")
    typer.echo(", ".join(words), err=True)
