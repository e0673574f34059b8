"""Options that several commands have, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SettingError

__all__ = [
    "READ_NAMES",
    "THE_MODEL",
    "THE_RUNNING",
    "THE_TABLE",
    "THE_TRAINING",
    "AsJson",
    "Bins",
    "Clicks",
    "Cluster",
    "Cross",
    "Data",
    "Device",
    "Drop",
    "Format",
    "Impressions",
    "Kind",
    "MaxValues",
    "MinCount",
    "Model",
    "NoQuotes",
    "Pooling",
    "Preset",
    "Quiet",
    "Separator",
    "Target",
    "Threads",
    "Unseen",
    "Weight",
    "Workers",
    "crosses_of",
    "kinds_of",
    "locate",
    "on_ray",
    "reading_of",
    "target_of",
]

THE_TABLE: dict[str, Any] = {"rich_help_panel": "The table"}
THE_MODEL: dict[str, Any] = {"rich_help_panel": "The model"}
THE_TRAINING: dict[str, Any] = {"rich_help_panel": "Training"}
THE_RUNNING: dict[str, Any] = {"rich_help_panel": "Running"}

Data = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="A file, a folder or a glob; or flights, the bundled example."
    ),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a model.")]
Format = Annotated[
    str,
    typer.Option(
        help="auto, csv, tsv, parquet, arrow, libffm, libsvm, criteo or avazu.", **THE_TABLE
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(help="A column to leave out. Repeatable.", metavar="COLUMN", **THE_TABLE),
]
Kind = Annotated[
    list[str] | None,
    typer.Option(
        help="What a column is, where the guess is wrong: category, numeric, time, "
        "quantile, log2, linear, or list:| for text with several values between |. Repeatable.",
        metavar="COLUMN=KIND",
        **THE_TABLE,
    ),
]
NoQuotes = Annotated[
    bool,
    typer.Option("--no-quotes", help="Treat quotes in text as ordinary characters.", **THE_TABLE),
]
Separator = Annotated[
    str | None, typer.Option(help="The separator of text files; found unless set.", **THE_TABLE)
]
MinCount = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Categories seen less often than this share their field's rare row.",
        **THE_TABLE,
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, or auto: a GPU where it is worth it.", **THE_RUNNING)
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads; all cores unless set.", **THE_RUNNING)
]
Clicks = Annotated[
    str | None,
    typer.Option(
        help="A column of counts, to learn as a share of --impressions.",
        metavar="COLUMN",
        **THE_TABLE,
    ),
]
Impressions = Annotated[
    str | None,
    typer.Option(
        help="The column of trials that --clicks are out of.", metavar="COLUMN", **THE_TABLE
    ),
]
Weight = Annotated[
    str | None, typer.Option(help="A column of sample weights.", metavar="COLUMN", **THE_TABLE)
]
Target = Annotated[
    list[str] | None,
    typer.Option(help="The column to learn. Repeatable.", metavar="COLUMN", **THE_TABLE),
]
Pooling = Annotated[
    str | None,
    typer.Option(help="How the values of a list are combined: mean or sum.", **THE_TABLE),
]
MaxValues = Annotated[
    int | None,
    typer.Option(min=1, help="Most values of a list that are read; 256 unless set.", **THE_TABLE),
]
Unseen = Annotated[
    str | None,
    typer.Option(
        help="What a value never seen in training scores as: mean of its field (unless set), rare, "
        "or error.",
        **THE_TABLE,
    ),
]
Bins = Annotated[
    int | None, typer.Option(min=1, help="Quantile bins of a number; 32 unless set.", **THE_TABLE)
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="fast (unless set): the field-wise model alone; glass: with crosses of fields; best: "
        "with boosted trees on top.",
        **THE_MODEL,
    ),
]
Cross = Annotated[
    list[str] | None,
    typer.Option(
        help="Fields to cross, separated by commas, such as user,item. Repeatable. Or auto (find "
        "them), or none.",
        metavar="FIELDS",
        **THE_MODEL,
    ),
]
Cluster = Annotated[
    str | None, typer.Option(help="ray: run on workers of a Ray cluster.", **THE_RUNNING)
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of workers, with --cluster.", **THE_RUNNING)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def on_ray(cluster: str | None, workers: int | None) -> bool:
    """Whether a Ray cluster is asked for."""
    if cluster is None and workers is not None:
        raise SettingError("--workers goes with --cluster ray; torchrun starts workers by itself")
    if cluster not in (None, "ray"):
        raise SettingError(f"cluster={cluster!r} is not known; the only choice is ray")
    return cluster == "ray"


def locate(data: str) -> str:
    """'flights' is the bundled table unless there is a file of that name."""
    if data == "flights" and not Path(data).exists():
        from ..data.datasets import flights_path

        return flights_path()
    return data


def kinds_of(pairs: list[str] | None) -> dict[str, str]:
    kinds = {}
    for pair in pairs or []:
        column, sign, kind = pair.rpartition("=")
        if not sign or not column:
            raise SettingError(f"--kind {pair!r} is not COLUMN=KIND")
        kinds[column] = kind
    return kinds


def crosses_of(given: Any) -> str | list[tuple[str, ...]]:
    """Fields to cross, as texts with commas or, in a file, as lists."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not all(isinstance(c, (str, list)) for c in given):
        raise SettingError(f"cross = {given!r} is not a list such as ['user,item']")
    if given in (["auto"], ["none"]):
        return str(given[0])
    parts = [c.split(",") if isinstance(c, str) else c for c in given]
    return [tuple(str(name).strip() for name in part) for part in parts]


def target_of(
    target: Sequence[str] | str | None, clicks: str | None, impressions: str | None
) -> dict[str, Any]:
    """The target options as arguments of `encode`."""
    if (clicks is None) != (impressions is None):
        raise SettingError("--clicks and --impressions go together")
    if clicks is not None and target:
        raise SettingError(f"--target {target} and --clicks {clicks}: name one of them")
    return {"target": target or clicks, "trials": impressions}


READ_NAMES = (
    "target", "clicks", "impressions", "format", "drop", "kind", "weight", "separator",
    "no_quotes", "min_count", "unseen", "bins", "pooling", "max_values",
)  # fmt: skip


def reading_of(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `encode`, removed from the options that were given."""
    kinds = given.pop("kind", None) or []
    quote = not given.pop("no_quotes", False)
    roles = target_of(*(given.pop(k, None) for k in ("target", "clicks", "impressions")))
    reading: dict[str, Any] = {k: given.pop(k) for k in READ_NAMES if k in given} | roles
    if reading.get("format") == "auto":
        del reading["format"]
    reading["kinds"] = kinds if isinstance(kinds, dict) else kinds_of(kinds)
    reading["quote"] = quote
    if "bins" in reading:
        reading["n_bins"] = reading.pop("bins")
    return reading
