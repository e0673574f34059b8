"""Whole journeys through the command line, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fieldwise import FieldwiseModel, synthetic
from fieldwise.data.encoding import load_vocabulary
from fieldwise.data.store import Store
from fieldwise.layout import Layout, log_ranks


def run(*arguments, expect: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "fieldwise", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def clicks(tmp_path) -> Path:
    frame = pl.DataFrame(
        {
            "gender": ["Male", "Male", "Female", None] * 10,
            "country": ["AU", "TH", "CH", "AU"] * 10,
            "price": [i * 1.5 for i in range(40)],
            "when": ["2024-05-01T10:00:00", "2024-05-02T11:30:00"] * 20,
            "clicked": ["No", "No", "Yes", "No"] * 10,
        }
    )
    frame.write_csv(tmp_path / "clicks.csv")
    return tmp_path / "clicks.csv"


def test_inspect(clicks):
    out = run("inspect", clicks, "--target", "clicked").stdout
    assert "40 rows" in out
    for word in ("gender", "category", "numeric", "time", "target", "25.0%", "parameters", "MB"):
        assert word in out
    found = json.loads(run("inspect", clicks, "--target", "clicked", "--json").stdout)
    by_name = {c["name"]: c for c in found["columns"]}
    assert by_name["country"]["distinct"] == 3
    assert by_name["country"]["rows"] == 4
    assert by_name["gender"]["missing"] == 0.25
    assert by_name["clicked"]["kind"] == "target"
    assert found["cost"]["fields"] == 6


def test_inspect_says_what_encode_then_makes(clicks, tmp_path):
    found = json.loads(run("inspect", clicks, "--target", "clicked", "--json").stdout)
    out = run("encode", clicks, "--target", "clicked", "--out", tmp_path / "s").stdout
    assert "40 rows, 6 fields" in out
    store = Store(tmp_path / "s")
    assert [c["name"] for c in found["columns"] if c["kind"] != "target"] == store.schema.columns


def test_inspect_rare_share(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{'x' if i < 15 else f'v{i}'},{i % 2}\n" for i in range(20)))
    found = json.loads(run("inspect", path, "--target", "y", "--json").stdout)
    assert found["columns"][0]["rare"] == 0.25
    assert found["columns"][0]["rows"] == 2
    found = json.loads(run("inspect", path, "--min-count", "1", "--target", "y", "--json").stdout)
    assert found["columns"][0]["rare"] == 0


def test_encode_options(clicks, tmp_path):
    out = tmp_path / "s"
    run(
        *("encode", clicks, "--target", "clicked", "--out", out),
        *("--kind", "price=linear", "--drop", "when", "--min-count", 3, "--unseen", "rare"),
    )
    store = Store(out)
    assert store.schema.names == ["gender", "country", "price"]
    assert store.schema["price"].is_linear
    assert (store.schema["gender"].min_count, store.schema["gender"].unseen) == (3, "rare")
    assert store.schema.target.classes == ("No", "Yes")
    again = run("encode", clicks, "--target", "clicked", "--out", out, expect=2)
    assert "holds a store already" in again.stderr
    run("encode", clicks, "--out", out, "--append")
    assert Store(out).n_rows == 80
    run("encode", clicks, "--target", "clicked", "--out", out, "--overwrite", "--quiet")
    assert Store(out).n_rows == 40


def test_flights_by_name(tmp_path):
    out = run("encode", "flights", "--target", "late", "--out", tmp_path / "s").stdout
    assert "327,346 rows, 18 fields" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nowhere.csv"], "nowhere.csv: no such file"),
        (["inspect", "{data}", "--target", "click"], "Did you mean 'clicked'"),
        (["inspect", "{data}", "--kind", "price"], "is not COLUMN=KIND"),
        (["inspect", "{data}", "--format", "xls"], "--format 'xls'"),
        (["encode", "{data}", "--out", "{out}"], "the target is missing"),
        (["encode", "{data}", "--out", "{out}", "--target", "price2"], "'price2' is not in"),
        (["encode", "{data}", "--out", "{data}", "--target", "clicked"], "is a file"),
        (["encode", "{data}", "--out", "{out}", "--append"], "is not a store"),
        (["encode", "{data}", "--out", "{out}", "--format", "criteo"], "40 columns"),
        (["encode", "{data}", "--out", "{out}", "--target", "clicked", "--bins", "0"], "bins"),
    ],
)
def test_mistakes_end_with_two_lines_at_most(clicks, tmp_path, arguments, message):
    out = tmp_path / "out"
    done = run(*[a.format(data=clicks, out=out) for a in arguments], expect=2)
    assert message in done.stderr
    if done.stderr.startswith("error"):
        assert len(done.stderr.strip().splitlines()) <= 2
    assert not out.exists()


def test_help_and_version_are_quick():
    for argument in ("--help", "--version"):
        started = time.perf_counter()
        run(argument)
        assert time.perf_counter() - started < 3  # what it takes is measured in benchmarks/data.py


def test_inspect_costs_what_encode_makes(tmp_path):
    frame = pl.DataFrame(
        {
            "when": pl.datetime_range(
                pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 9), "1h", eager=True
            ),
            "then": pl.datetime_range(
                pl.datetime(2023, 1, 1), pl.datetime(2023, 1, 9), "1h", eager=True
            ),
        }
    ).with_columns(
        id=pl.int_range(pl.len()),
        some=pl.when(pl.int_range(pl.len()) == 3).then(None).otherwise(pl.lit("x")),
        y=pl.int_range(pl.len()) % 2,
        w=pl.lit(0.5),
    )
    frame.write_parquet(tmp_path / "t.parquet")
    options = [tmp_path / "t.parquet", "--target", "y", "--kind", "id=category", "--weight", "w"]
    found = json.loads(run("inspect", *options, "--json").stdout)
    run("encode", *options, "--out", tmp_path / "s")
    store = Store(tmp_path / "s")
    sizes = load_vocabulary(store).sizes
    assert found["cost"]["fields"] == len(sizes) == 8
    by_name = {c["name"]: c for c in found["columns"]}
    assert by_name["w"]["kind"] == "weight"
    assert by_name["id"]["rare"] == 1.0
    assert by_name["id"]["rows"] == sizes[6]
    assert by_name["some"]["rows"] == sizes[7]
    # Calendar parts are estimated, never below what they turn out to be.
    assert found["cost"]["rows"] >= sum(sizes)
    layout = Layout.of([*sizes])
    assert found["cost"]["parameters"] >= layout.n_parameters


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a table and a model of it, made through the command line."""
    folder = tmp_path_factory.mktemp("journey")
    random = np.random.default_rng(0)
    site, hour = random.choice(["a", "b", "c"], 4000), random.integers(0, 24, 4000)
    late = np.where((site == "a") ^ (hour > 11), "yes", "no")
    frame = pl.DataFrame({"site": site, "hour": hour, "day": np.arange(4000) // 40, "late": late})
    frame.write_csv(folder / "t.csv")
    options = ["--target", "late", "--epochs", 4, "--rank", 3, "--out", folder / "m"]
    done = run("train", folder / "t.csv", *options)
    assert "epoch 4" in done.stderr
    assert "logloss" in done.stdout
    assert sorted(p.name for p in folder.iterdir()) == ["m", "t.csv"]
    return folder


def test_train_evaluate_predict_info(trained):
    found = json.loads(run("evaluate", trained / "m", trained / "t.csv", "--json").stdout)
    assert found["rows"] == 4000
    assert found["logloss"] < 0.2
    assert found["auc"] > 0.98
    assert {"normalised_entropy", "calibration_error", "rows_per_second"} <= set(found)
    assert "logloss" in run("evaluate", trained / "m", trained / "t.csv").stdout
    for name in ("p.csv", "p.parquet"):
        run("predict", trained / "m", trained / "t.csv", "--out", trained / name)
    csv = pl.read_csv(trained / "p.csv")["probability"]
    parquet = pl.read_parquet(trained / "p.parquet")["probability"]
    assert len(csv) == 4000
    assert np.allclose(csv, parquet, atol=1e-6)
    truth = pl.read_csv(trained / "t.csv")["late"] == "yes"
    assert ((csv > 0.5) == truth).mean() > 0.95
    out = run("info", trained / "m").stdout
    for word in ("site", "hour", "importance", "parameters", "no, yes", "learning_rate"):
        assert word in out


def test_evaluate_weighs_rows_and_tells_unseen_values(trained, tmp_path):
    frame = pl.read_csv(trained / "t.csv").with_columns(w=pl.lit(1.0))
    frame.write_csv(tmp_path / "t.csv")
    options = ["--target", "late", "--weight", "w", "--epochs", 1, "--rank", 1, "--quiet"]
    run("train", tmp_path / "t.csv", *options, "--out", tmp_path / "m")
    # A row of weight 2 counts as two rows.
    twice = pl.concat([frame, frame.filter(pl.col("hour") == 3)])
    heavy = frame.with_columns(w=pl.when(pl.col("hour") == 3).then(2).otherwise(1))
    found = []
    for name, table in (("twice", twice), ("heavy", heavy)):
        table.write_csv(tmp_path / f"{name}.csv")
        out = run("evaluate", tmp_path / "m", tmp_path / f"{name}.csv", "--json").stdout
        found.append(json.loads(out))
    assert found[0]["logloss"] == pytest.approx(found[1]["logloss"], rel=1e-6)
    assert found[0]["auc"] == pytest.approx(found[1]["auc"], rel=1e-6)
    frame.drop("w").write_csv(tmp_path / "bare.csv")
    done = run("evaluate", tmp_path / "m", tmp_path / "bare.csv", expect=2)
    assert "weight 'w'" in done.stderr
    frame.with_columns(site=pl.lit("new")).write_csv(tmp_path / "new.csv")
    done = run("evaluate", tmp_path / "m", tmp_path / "new.csv")
    assert "site: 100.00% of rows have a value never seen in training" in done.stderr
    done = run("predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert "site: 100.00%" in done.stderr


def test_train_from_a_store_with_a_config_and_a_split(trained, tmp_path):
    run("encode", trained / "t.csv", "--target", "late", "--out", tmp_path / "s")
    (tmp_path / "c.toml").write_text("epochs = 2\nrank = 2\nsplit = 'time:day'\nseed = 5\n")
    run("train", tmp_path / "s", "--config", tmp_path / "c.toml", "--out", tmp_path / "m",
        "--rank", 1, "--learning-rate", 0.1, "--threads", 1)  # fmt: skip
    model = FieldwiseModel.load(tmp_path / "m")
    assert model.layout.ranks == (1, 1, 1)
    assert len(model.history) == 2
    assert (model.settings["split"], model.settings["seed"]) == ("time:day", 5)
    # The same again, byte for byte.
    run("train", tmp_path / "s", "--config", tmp_path / "c.toml", "--out", tmp_path / "n",
        "--rank", 1, "--learning-rate", 0.1, "--threads", 2)  # fmt: skip
    tables = [(tmp_path / m / "table.safetensors").read_bytes() for m in "mn"]
    assert tables[0] == tables[1]


def test_paper_settings(tmp_path):
    path = synthetic("criteo", 6000).to_text(tmp_path / "train.txt")
    run(
        "train", path, "--paper", "criteo", "--epochs", 1, "--min-count", 2, "--out", tmp_path / "m"
    )
    model = FieldwiseModel.load(tmp_path / "m")
    wanted = {"learning_rate": 0.01, "weight_decay": 1e-6, "penalty": 1e-3, "batch_size": 2048}
    assert {k: model.settings[k] for k in wanted} == wanted
    assert model.layout.ranks == log_ranks(model.layout.sizes, 1.6)
    assert model.schema["I1"].binning == "log2"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    """A table with a class of three, a number, a count, and clicks of impressions."""
    folder = tmp_path_factory.mktemp("tasks")
    random = np.random.default_rng(0)
    n = 3000
    site, hour = random.choice(["a", "b", "c"], n), random.integers(0, 24, n)
    up = (site == "a") ^ (hour > 11)
    shown = random.integers(1, 9, n)
    frame = pl.DataFrame(
        {
            "site": site,
            "hour": hour,
            "colour": np.where(up, "red", np.where(hour % 2, "green", "blue")),
            "delay": 100.0 * up + random.normal(size=n),
            "calls": random.poisson(1 + 2 * up),
            "clicks": random.binomial(shown, 0.1 + 0.6 * up),
            "shown": shown,
        }
    )
    frame.write_csv(folder / "t.csv")
    return folder


@pytest.mark.parametrize(
    ("columns", "options", "metric", "bound", "written"),
    [
        ("colour", ["--target", "colour"], "accuracy", (0.95, 1), "probability_red"),
        ("colour", ["--target", "colour", "--combine", "vote"], "logloss", (0, 1.1), None),
        ("delay", ["--target", "delay"], "rmse", (0, 10), "prediction"),
        ("delay", ["--target", "delay", "--loss", "huber"], "mae", (0, 10), "prediction"),
        (
            "calls",
            ["--target", "calls", "--loss", "poisson", "--kind", "calls=numeric"],
            "deviance",
            (0, 1.3),
            "prediction",
        ),
        (
            "clicks,shown",
            ["--clicks", "clicks", "--impressions", "shown", "--members", "2", "--bagging"],
            "logloss",
            (0, 0.55),
            "probability",
        ),
        (
            "clicks,shown",
            [
                "--clicks",
                "clicks",
                "--impressions",
                "shown",
                "--combine",
                "weighted",
                "--aggregate",
            ],
            "auc",
            (0.75, 1),
            "probability",
        ),
    ],
)
def test_every_task_from_a_table_to_predictions(
    tasks, tmp_path, columns, options, metric, bound, written
):
    kept = {"site", "hour", *columns.split(",")}
    drops = [
        w for c in pl.read_csv(tasks / "t.csv").columns if c not in kept for w in ("--drop", c)
    ]
    done = run("train", tasks / "t.csv", *options, *drops, "--out", tmp_path / "m", "--epochs", 8)
    assert "on the held-out rows" in done.stdout
    table = pl.read_csv(tasks / "t.csv").select(sorted(kept))
    table.write_csv(tmp_path / "new.csv")
    found = json.loads(run("evaluate", tmp_path / "m", tmp_path / "new.csv", "--json").stdout)
    assert bound[0] <= found[metric] <= bound[1]
    run("predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "p.parquet")
    predicted = pl.read_parquet(tmp_path / "p.parquet")
    assert predicted.height == table.height
    assert written is None or written in predicted.columns
    assert "parameters" in run("info", tmp_path / "m").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clicks", "clicks"], "go together"),
        (["--clicks", "shown", "--impressions", "clicks"], "no more than trials"),
        (["--target", "hour", "--clicks", "clicks", "--impressions", "shown"], "name one"),
        (["--target", "delay", "--loss", "softmax"], "does not fit the target"),
        (["--target", "delay", "--loss", "poisson"], "counts for poisson"),
        (["--target", "colour", "--sampling-rate", "0.5"], "with two classes"),
        (["--clicks", "clicks", "--impressions", "shown", "--sampling-rate", "3"], "at most 1"),
        (["--target", "colour", "--combine", "best"], "--combine 'best'"),
        (["--target", "colour", "--members", "0"], "--members 0"),
    ],
)
def test_mistakes_with_tasks(tasks, tmp_path, options, message):
    done = run("train", tasks / "t.csv", *options, "--out", tmp_path / "m", expect=2)
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "{t}", "--out", "{m}", "--target", "late"], "is there already"),
        (["train", "{t}", "--out", "{x}", "--target", "late", "--rank", "-2"], "--rank -2"),
        (["train", "{t}", "--out", "{x}", "--target", "late", "--epochs", "0"], "--epochs 0"),
        (["train", "{t}", "--out", "{x}", "--target", "late", "--split", "x"], "--split 'x'"),
        (["train", "{t}", "--out", "{x}", "--target", "late", "--paper", "x"], "--paper 'x'"),
        (["train", "{t}", "--out", "{x}", "--target", "late", "--config", "{t}"], "not TOML"),
        (["evaluate", "{t}", "{t}"], "is not a model"),
        (["evaluate", "{m}", "nowhere.csv"], "no such file"),
        (["predict", "{m}", "{t}", "--out", "{x}"], ".parquet or .csv"),
        (["info", "{x}"], "is not a model"),
    ],
)
def test_mistakes_with_models(trained, arguments, message):
    names = {"t": trained / "t.csv", "m": trained / "m", "x": trained / "x"}
    done = run(*[a.format(**names) for a in arguments], expect=2)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert not list(trained.glob("*x*"))
    assert not list(trained.glob(".*"))


def test_lists_and_several_targets(tmp_path):
    random = np.random.default_rng(0)
    tags = [list(random.choice(list("abcd"), k, replace=False)) for k in random.integers(1, 4, 800)]
    y = [int("a" in t) for t in tags]
    size = [float(len(t)) for t in tags]
    frame = pl.DataFrame({"tags": ["|".join(t) for t in tags], "y": y, "size": size, "c": "k"})
    frame.write_csv(tmp_path / "t.csv")
    kind = ("--kind", "tags=list:|")
    found = json.loads(run("inspect", tmp_path / "t.csv", *kind, "--target", "y", "--json").stdout)
    by_name = {c["name"]: c for c in found["columns"]}
    assert by_name["tags"]["kind"] == "list (up to 3)"
    assert by_name["tags"]["distinct"] == 4
    out = run(
        *("train", tmp_path / "t.csv", "--out", tmp_path / "m", *kind, "--pooling", "sum"),
        *("--target", "y", "--target", "size", "--learning-rate", 0.3),
    ).stdout
    assert "loss" in out
    shown = run("info", tmp_path / "m").stdout
    assert "learns y: logistic loss, classes 0, 1" in shown
    assert "learns size: squared loss" in shown
    measured = json.loads(run("evaluate", tmp_path / "m", tmp_path / "t.csv", "--json").stdout)
    assert measured["logloss_y"] < 0.2
    assert measured["r2_size"] > 0.9
    longer = ("--max-values", 2)
    refused = run(
        *("encode", tmp_path / "t.csv", "--out", tmp_path / "s", "--target", "y", *kind, *longer),
        expect=2,
    )
    assert "has 3 values, and 2 is the most" in refused.stderr
