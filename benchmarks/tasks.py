"""The framework's figures: what outputs and members cost, aggregation, and tasks beside LightGBM.

    make bench-tasks

Writes benchmarks/results/tasks.json. Needs about 9 GB of memory. The estimators run with their
defaults, LightGBM with native categories and early stopping on the same validation rows; the test
rows are read once. Real tables lie in shared/data beside the project and are left out where absent.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from benchmarks.accuracy import FOLDER, LEAKS
from benchmarks.cpu import BATCH, SHAPES
from benchmarks.record import save, timed
from fieldwise import (
    FieldEncoder,
    FieldwiseClassifier,
    FieldwiseRegressor,
    Layout,
    synthetic,
)
from fieldwise.engines import StepSettings
from fieldwise.engines.cpu import CpuEngine
from fieldwise.objective import Head, Objective
from fieldwise.train import initialise

STEPS = 8
RUNS = 12
HOTEL_LEAKS = ("is_canceled", "reservation_status", "reservation_status_date", "label")


def cost_of_outputs() -> dict[str, Any]:
    """A step of several outputs over one of a single output, Criteo's shape, runs taken in turn."""
    sizes, ranks = SHAPES["criteo"][0].sizes, SHAPES["criteo"][0].ranks
    codes, y = synthetic("criteo", (RUNS + 1) * STEPS * BATCH, seed=1).arrays()
    out: dict[str, Any] = {}
    for name, objective in (
        ("2 members", Objective(n_members=2)),
        ("4 members", Objective(n_members=4)),
        ("4 classes", Objective((Head("softmax", 4),))),
    ):
        both = []
        for one in (Objective(), objective):
            layout = Layout(sizes, ranks, one.n_outputs)
            engine = CpuEngine(layout, StepSettings(0.01, 1e-6, 0.0), one, np.zeros(one.n_outputs))
            initialise(engine.table, seed=0, scale=0.02)
            engine.state[:] = 1e-6
            both.append(engine)
        ratios = []
        for k in range(RUNS + 1):
            part = slice(k * STEPS * BATCH, (k + 1) * STEPS * BATCH)
            rows, target = codes[part], y[part, None]
            plain, several = (timed(partial(e.run, rows, None, target, None)) for e in both)
            ratios.append(several / plain)
        out[name] = {"times_one_output": statistics.median(ratios[1:]), "runs": ratios[1:]}
        print(f"{name}: {out[name]['times_one_output']:.2f} times a step of one output", flush=True)
        del both, engine
    return out


def aggregation() -> dict[str, Any]:
    """A table of two million rows and at most 2,520 different ones."""
    codes, y = synthetic([7, 5, 8, 3, 3], 2_000_000, seed=0).arrays()
    names = [f"f{j}" for j in range(codes.shape[1])]
    X = pl.DataFrame({n: pl.Series(codes[:, j]).cast(pl.String) for j, n in enumerate(names)})
    out: dict[str, Any] = {"rows": len(X), "distinct_rows": X.n_unique()}
    for aggregate in (False, True):
        model = FieldwiseClassifier(aggregate=aggregate, random_state=0)
        seconds = timed(partial(model.fit, X, y))
        name = "aggregated" if aggregate else "as_they_are"
        out[name] = {
            "seconds": seconds,
            "training_seconds": sum(record["seconds"] for record in model.history_),
            "validation_logloss": model.model_.metrics["logloss"],
        }
        print(f"{name}: {seconds:.1f} s, {out[name]['validation_logloss']:.5f}", flush=True)
    gap = out["aggregated"]["validation_logloss"] - out["as_they_are"]["validation_logloss"]
    out["difference"] = gap
    for what in ("seconds", "training_seconds"):
        out[f"times_{what}"] = out["as_they_are"][what] / out["aggregated"][what]
    return out


def parts_of(frame: pl.DataFrame, target: pl.Series) -> list[tuple[pl.DataFrame, np.ndarray]]:
    n = frame.height
    p = np.random.default_rng(0).permutation(n)
    cuts = np.split(p, [int(0.8 * n), int(0.9 * n)])
    y = target.to_numpy()
    return [(frame[rows], y[rows]) for rows in cuts]


def tables() -> Iterator[tuple[str, str, list[tuple[pl.DataFrame, np.ndarray]]]]:
    if (FOLDER / "flights").exists():
        whole = pl.read_parquet(FOLDER / "flights" / "flights.parquet")
        frame, delay = whole.drop([*LEAKS, "label"]), whole["arr_delay"]
        band = delay.cut([-10, 0, 15, 60], labels=["early", "on time", "late", "later", "latest"])
        yield "flights, five bands of delay", "classes", parts_of(frame, band.cast(pl.String))
        yield "flights, minutes of delay", "numbers", parts_of(frame, delay.cast(pl.Float64))
    if (FOLDER / "hotel").exists():
        whole = pl.read_parquet(FOLDER / "hotel" / "data.parquet")
        whole = whole.filter(pl.col("market_segment") != "Undefined").drop(HOTEL_LEAKS)
        segment, rate = whole["market_segment"], whole["adr"].cast(pl.Float64)
        yield (
            "hotel, market segment",
            "classes",
            parts_of(whole.drop("market_segment"), segment),
        )
        yield "hotel, daily rate", "numbers", parts_of(whole.drop("adr"), rate)


def judged(kind: str, found: np.ndarray, y: np.ndarray) -> dict[str, float]:
    if kind == "classes":
        chance = np.clip(found[np.arange(len(y)), y], 1e-12, 1)
        right = found.argmax(axis=1) == y
        return {"logloss": float(-np.log(chance).mean()), "accuracy": float(right.mean())}
    away = found - y
    return {"rmse": float(np.sqrt((away**2).mean())), "mae": float(np.abs(away).mean())}


def ours(kind: str, parts: list[tuple[pl.DataFrame, np.ndarray]], y: np.ndarray) -> dict[str, Any]:
    started = time.perf_counter()
    if kind == "classes":
        classifier = FieldwiseClassifier(random_state=0).fit(*parts[0], eval_set=parts[1])
        seconds = time.perf_counter() - started
        found = classifier.predict_proba(parts[2][0])
    else:
        regressor = FieldwiseRegressor(random_state=0).fit(*parts[0], eval_set=parts[1])
        seconds = time.perf_counter() - started
        found = regressor.predict(parts[2][0])
    return {**judged(kind, found, y), "seconds": seconds}


def lightgbm(
    kind: str, parts: list[tuple[pl.DataFrame, np.ndarray]], targets: list[np.ndarray]
) -> dict[str, Any]:
    import lightgbm as library

    started = time.perf_counter()
    encoder = FieldEncoder(unseen="rare")
    codes = [encoder.fit_transform(parts[0][0]), *(encoder.transform(X) for X, _ in parts[1:])]
    params: dict[str, Any] = {"verbose": -1, "seed": 0, "num_leaves": 63, "max_bin": 8192}
    if kind == "classes":
        params |= {"objective": "multiclass", "num_class": int(targets[0].max()) + 1}
    else:
        params |= {"objective": "regression"}
    options = {
        "categorical_feature": list(range(codes[0].shape[1])),
        "params": {"verbose": -1, "max_bin": 8192},
    }
    data = library.Dataset(codes[0], targets[0], **options)
    judge = library.Dataset(codes[1], targets[1], reference=data, **options)
    stop = [library.early_stopping(30, verbose=False)]
    model = library.train(params, data, 1000, valid_sets=[judge], callbacks=stop)
    seconds = time.perf_counter() - started
    return {**judged(kind, model.predict(codes[2]), targets[2]), "seconds": seconds}


def compared() -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, kind, parts in tables():
        targets = [y for _, y in parts]
        if kind == "classes":
            words = np.unique(targets[0])
            targets = [np.searchsorted(words, y) for y in targets]
        out[name] = {"kind": kind, "fieldwise": ours(kind, parts, targets[2])}
        print(name, out[name]["fieldwise"], flush=True)
        if importlib.util.find_spec("lightgbm") is not None:
            out[name]["LightGBM"] = lightgbm(kind, parts, targets)
            print(name, "LightGBM", out[name]["LightGBM"], flush=True)
    return out


def main() -> None:
    few = pl.DataFrame({"a": ["x", "y"] * 50, "b": ["u", "u", "v", "v"] * 25})
    FieldwiseClassifier(epochs=1).fit(few, [0, 1] * 50)  # compiles the kernels
    FieldwiseRegressor(epochs=1).fit(few, [0.0, 1.0] * 50)
    figures = {
        "task": "what outputs cost, aggregation, classes and numbers beside LightGBM",
        "outputs": cost_of_outputs(),
        "aggregation": aggregation(),
        "tables": compared(),
    }
    print(f"written: {save('tasks', 'make bench-tasks', figures)}")


if __name__ == "__main__":
    main()
