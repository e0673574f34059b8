"""The command line, in this process: any arguments, any configuration file. A command ends with 0,
or with 1 or 2 and a line or two that say why."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest import mock

import typer

from fieldwise import demo
from fieldwise.cli import app, main
from fieldwise.cli.training import _train_options
from fieldwise.distributed import ray
from fieldwise.errors import SettingError
from fieldwise.serve import run as serve_run
from serving import clicks

from .draws import Draw

__all__ = ["SEEDS", "TARGETS"]

VALUES = (
    *("0", "1", "2", "3", "-1", "0.5", "nan", "inf", "-inf", "1e400", "1e-300", "99999999999"),
    *("", " ", "a", "é", "\ud800", "--", "-", "site", "hour", "click", "level", "amount", "price"),
    *("tags", "age", "when", "mobile", "nowhere", "site=category", "hour=linear", "age=log2"),
    *("tags=list:|", "site=numeric", "=", "a=b=c", "site,hour", "auto", "none", "csv", "tsv"),
    *("parquet", "arrow", "libffm", "libsvm", "criteo", "avazu", ",", ";", "\\t", "cpu", "cuda"),
    *("ray", "mean", "rare", "error", "sum", "vote", "weighted", "weighted_vote", "boosted", "fm"),
    *(
        "linear",
        "squared",
        "poisson",
        "huber",
        "random",
        "time:when",
        "group:site",
        "time:",
        "fast",
    ),
    *("glass", "duckdb", "postgres", "python", "sql", "onnx", "html", "json", "md", "v1", "000001"),
    *("a.csv", "model", "store", "out", "new", "out.csv", "out.parquet", "out.py", "c.toml", "*"),
)
QUICK = {"train": ["--epochs", "1", "--rank", "1"], "update": ["--epochs", "1"]}


@cache
def scratch() -> Path:
    return Path(mkdtemp(prefix="commands-"))


@cache
def home() -> Path:
    """A folder with a table, a store and a model; every command runs in a copy of it."""
    folder = scratch() / "whole"
    folder.mkdir()
    frame = clicks(6, 60).drop("tags")
    frame.write_csv(folder / "a.csv")
    (folder / "c.toml").write_text('epochs = 1\nrank = 1\ntarget = "click"\n')
    train = ["--target", "click", "--drop", "level", "--drop", "amount", "--config", "c.toml"]
    code, *told = called(["fieldwise", "train", "a.csv", "--out", "model", *train], folder)
    assert code == 0, told
    return folder


@cache
def options() -> dict[str, list[Any]]:
    command: Any = typer.main.get_command(app)
    return {name: list(one.params) for name, one in sorted(command.commands.items())}


def arguments_of(draw: Draw) -> list[str]:
    """A command nearly as it should be, or anything."""
    name = draw.pick(sorted(options()))
    usual = {"data": "a.csv", "model": "model", "field": "site", "value": "a", "name": "criteo"}
    given = [usual.get(p.name, "x") for p in options()[name] if not p.opts[0].startswith("-")]
    if given and not draw.below(6):
        given[draw.below(len(given))] = draw.pick(VALUES)
    out = [name, *given]
    named = {p.opts[0]: p for p in options()[name] if p.opts[0].startswith("-")}
    if "--target" in named and draw.below(8):
        out += ["--target", "click", "--drop", "level", "--drop", "amount"]
    if "--out" in named and draw.below(8):
        out += ["--out", draw.pick(("out", "out", "out.csv", "out.py", "out.sql", "out.html"))]
    for option in draw.some(sorted(named), 3 if named else 0):
        out.append(option)
        if not named[option].is_flag:
            out.append(draw.text() if draw.below(8) == 0 else draw.pick(VALUES))
    if draw.below(16) == 0:
        out.insert(draw.below(len(out)), draw.pick(VALUES))
    return [part.replace("\0", "") for part in [*out, *QUICK.get(name, [])]]


def called(given: list[str], folder: Path) -> tuple[Any, str, str]:
    """The exit code and what is printed."""
    out, errors = StringIO(), StringIO()
    code: Any = 0
    before = os.getcwd()
    os.chdir(folder)
    try:
        with redirect_stdout(out), redirect_stderr(errors), mock.patch.object(sys, "argv", given):
            main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        os.chdir(before)
    return code, out.getvalue(), errors.getvalue()


def arguments(data: bytes) -> None:
    given = arguments_of(Draw(data))
    if given[0] in ("compare", "tune", "reproduce"):  # their arguments alone: they take minutes
        given += ["--time-limit", "none"]
    folder = scratch() / "work"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(home(), folder)
    stop = mock.Mock(side_effect=SettingError("not started here"))
    with (
        mock.patch.object(demo, "run_demo", stop),
        mock.patch.object(serve_run, "run_server", stop),
        mock.patch.object(ray, "train_on_ray", stop),
        mock.patch.object(ray, "encode_on_ray", stop),
    ):
        code, out, errors = called(["fieldwise", *given], folder)
    told = (given, code, out[-300:], errors[-2000:])
    assert code in (0, 1, 2), told
    assert "Traceback" not in errors + out, told
    if (
        code == 2 and errors.startswith("error:") and given[0] != "update"
    ):  # it tells all that drifted
        assert errors.count("\n") <= 3, told
    assert code == 0 or errors, told
    left = [p.name for p in folder.iterdir() if p.name.startswith(".") and p.name.endswith("tmp")]
    assert not left, (told, left)


def config(data: bytes) -> None:
    """Any TOML: options of the kinds that `train` has, or a refusal."""
    file = scratch() / "any.toml"
    file.write_bytes(data)
    reading, fitting = _train_options({}, file)
    assert isinstance(reading["kinds"], dict), reading
    for name in ("rank", "threads", "n_members"):
        assert type(fitting.get(name, 1)) is int, fitting
    for name in ("min_count", "n_bins", "max_values"):
        assert type(reading.get(name, 1)) is int, reading
    for name in ("target", "drop"):
        texts = reading.get(name) or []
        assert isinstance(texts, (str, list)), reading
        assert all(isinstance(text, str) for text in texts), reading
    for name in ("validation", "sampling_rate", "rank_base"):
        assert type(fitting.get(name, 0.5)) in (int, float), fitting


TARGETS = {"arguments": arguments, "config": config}
SEEDS: dict[str, list[bytes]] = {
    "arguments": [bytes(range(k, 255, 7)) for k in (3, 8, 12)],
    "config": [
        b'epochs = 1\nrank = 4\ntarget = "click"\ndrop = ["id"]\nkind = ["a=category"]\n',
        b'paper = "criteo"\nlearning_rate = 0.1\nhalf = true\nvalidation = 0.1\n',
        b'cross = ["a,b", "c,d"]\npreset = "glass"\nsplit = "time:when"\n',
        b'cross = "auto"\n[kind]\na = "category"\n',
        b"min_count = 0x10\nseed = 1979-05-27T07:32:00Z\nrank = [[[[[[]]]]]]\n",
    ],
}
