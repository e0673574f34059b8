"""Commands that train many times: search settings, compare methods, follow the bound over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SettingError
from .options import (
    READ_NAMES,
    Bins,
    Clicks,
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
    Quiet,
    Separator,
    Target,
    Threads,
    Unseen,
    Weight,
    locate,
    reading_of,
)
from .screen import console, interruptible

__all__ = ["bound", "compare", "reproduce", "tune"]

Methods = Annotated[
    str, typer.Option(help="Names separated by commas; paper: the paper's ten; all: others too.")
]
Repeats = Annotated[int, typer.Option(min=1, help="Seeds each method is fitted with.")]
TimeLimit = Annotated[float | None, typer.Option(help="Minutes each method may take.")]
Split = Annotated[
    str, typer.Option(help="How rows are held out: random, time:FIELD or group:FIELD.")
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed of the split and the search.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Discard earlier results and start again.")
]


def _said(given: dict[str, Any]) -> dict[str, Any]:
    """Those of a command's options that concern the table and were given."""
    return {k: v for k, v in given.items() if k in READ_NAMES and v not in (None, False, "auto")}


def _running(device: str | None, threads: int | None, quiet: bool) -> Any:
    from ..train import Running

    return Running(device=device or "auto", n_jobs=threads, show=False if quiet else None)


def _goes_on(out: Path) -> AbstractContextManager[None]:
    return interruptible(f"the same command continues where it stopped ({out})")


def _say(quiet: bool) -> Any:
    return (lambda words: None) if quiet else (lambda words: typer.echo(words, err=True))


def compare(
    data: Data,
    out: Annotated[Path, typer.Option(help="The folder of the results.")] = Path("compared"),
    target: Target = None,
    methods: Methods = "paper",
    trials: Annotated[int, typer.Option(min=1, help="Settings tried for each method.")] = 20,
    repeats: Repeats = 5,
    split: Split = "random",
    validation: Annotated[float, typer.Option(help="Share of rows to choose settings by.")] = 0.1,
    test: Annotated[float, typer.Option(help="Share of rows read once at the end.")] = 0.1,
    validation_data: Annotated[
        str | None,
        typer.Option(help="Rows to choose settings by, where they are a table of their own."),
    ] = None,
    test_data: Annotated[
        str | None,
        typer.Option(help="Rows read once at the end, where they are a table of their own."),
    ] = None,
    time_limit: TimeLimit = None,
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
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on a table, each tuned on the same rows.

    fieldwise compare clicks.csv --target clicked --out compared
    fieldwise compare clicks.csv --target clicked --methods LR,GBDT,ours
    """
    said = _said(locals())
    from ..compare import compare_table

    others = {"validation_data": validation_data, "test_data": test_data}
    with _goes_on(out):
        body = compare_table(
            locate(data),
            out,
            methods=methods.split(","),
            trials=trials,
            repeats=repeats,
            split=split,
            validation=validation,
            test=test,
            **{k: v and locate(v) for k, v in others.items()},
            time_limit=time_limit,
            seed=seed,
            reading=reading_of(said),
            overwrite=overwrite,
            running=_running(device, threads, quiet),
            say=_say(quiet),
        )
    _show(body, out)


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="criteo or avazu.")],
    data: Annotated[str, typer.Option(help="The raw file: train.txt, or train.csv.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder of the results; unless set, called NAME.")
    ] = None,
    methods: Methods = "paper",
    repeats: Repeats = 5,
    time_limit: TimeLimit = None,
    no_figures: Annotated[
        bool, typer.Option("--no-figures", help="Leave out figure 1: importance and bound.")
    ] = False,
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Make the paper's table and figure from the raw download.

    fieldwise reproduce criteo --data train.txt
    """
    from ..compare import reproduce as run

    out = out or Path(name)
    with _goes_on(out):
        body = run(
            name,
            locate(data),
            out,
            methods=methods.split(","),
            repeats=repeats,
            time_limit=time_limit,
            seed=seed,
            figures=not no_figures,
            overwrite=overwrite,
            running=_running(device, threads, quiet),
            say=_say(quiet),
        )
    _show(body, out)


def tune(
    data: Data,
    out: Annotated[Path, typer.Option(help="The TOML file to write, for train --config.")] = Path(
        "tuned.toml"
    ),
    target: Target = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Settings to try in all, those of earlier runs included.")
    ] = 30,
    jobs: Annotated[int, typer.Option(min=1, help="Trials to run at the same time.")] = 1,
    time_limit: Annotated[float | None, typer.Option(help="Minutes the search may take.")] = None,
    split: Split = "random",
    validation: Annotated[
        float | None, typer.Option(help="Share of rows held out; 0.1 unless set.")
    ] = None,
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
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Search for the best settings of a table, for train --config.

    fieldwise tune clicks.csv --target clicked --out tuned.toml
    fieldwise train clicks.csv --config tuned.toml --out clicks.model
    """
    said = _said(locals())
    from ..tune import tune_table

    with _goes_on(out):
        found = tune_table(
            locate(data),
            out,
            trials=trials,
            jobs=jobs,
            time_limit=time_limit,
            split=split,
            validation=validation,
            seed=seed,
            config=dict(said),
            reading=reading_of(said),
            running=_running(device, threads, quiet),
            say=_say(quiet),
        )
    shown = ", ".join(f"{k} {v:.3g}" for k, v in found.items() if k not in ("loss", "trials"))
    typer.echo(f"{out}: validation loss {found['loss']:.4f} of {found['trials']} trials ({shown})")


def bound(
    data: Data,
    out: Annotated[Path, typer.Option(help="The folder of the results.")] = Path("bound"),
    target: Target = None,
    ranks: Annotated[
        str, typer.Option(help="Ranks to train, separated by commas.")
    ] = "1,2,4,8,16,32",
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Training loss at which to stop; unless set, one that every rank can reach."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Most epochs for each rank.")] = 30,
    learning_rate: Annotated[float, typer.Option(help="Adagrad's step.")] = 0.05,
    weight_decay: Annotated[float, typer.Option(help="Decay of the rows in a batch.")] = 1e-5,
    penalty: Annotated[
        float, typer.Option(help="Weight of the penalty that holds a field's models together.")
    ] = 1e-5,
    combine: Annotated[
        str, typer.Option(help="How the fields' scores combine: sum or weighted.")
    ] = "sum",
    split: Split = "random",
    validation: Annotated[
        float | None, typer.Option(help="Share of rows held out; 0.1 unless set.")
    ] = None,
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
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Compare the generalisation bound of ranks at one training loss.

    fieldwise bound clicks.csv --target clicked --ranks 1,4,16
    """
    said = _said(locals())
    from ..train import TrainSettings
    from ..trend import bound_table
    from ..trend.figures import HEADINGS, cells

    with _goes_on(out):
        body = bound_table(
            locate(data),
            out,
            ranks=_numbers(ranks),
            threshold=threshold,
            split=split,
            validation=validation,
            combine=combine,
            settings=TrainSettings(
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                penalty=penalty,
                epochs=epochs,
                seed=seed,
            ),
            reading=reading_of(said),
            running=_running(device, threads, quiet),
            say=_say(quiet),
        )
    rows = [(cells(row), row["rank"] == body["best"]) for row in body["ranks"]]
    _print(HEADINGS, rows, out, "bound.*")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"--ranks {text!r} is not numbers with commas between") from None


def _show(body: dict[str, Any], out: Path) -> None:
    from ..compare.pages import best, cells, headings

    rows = [(cells(row, body), row["name"] == best(body)) for row in body["methods"]]
    _print(headings(body), rows, out, "results.*", "figure1*")


def _print(
    headings: Sequence[str], rows: Sequence[tuple[list[str], bool]], out: Path, *files: str
) -> None:
    """A table of cells, the best row bold, and the files that were written."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for k, name in enumerate(headings):
        table.add_column(name, justify="right" if k else "left", overflow="fold")
    for shown, is_best in rows:
        table.add_row(*map(Text, shown), style="bold" if is_best else None)
    to = console(160)
    to.print(table)
    written = sorted(p.name for pattern in files for p in out.glob(pattern))
    to.print(f"{out}: {', '.join(written)}")
