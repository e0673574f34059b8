"""A model that is updated beside one that is left alone and one that is trained anew.

    make bench-update

The flights in the order of time: trained on January to September, updated with October and judged
on November, then updated with November and judged on December. Training anew has all months before
the one it is judged on. The same from March on, eight updates one after the other. Date, month and
day are left out: their values do not come back, or, like a day, mean another one each month. Writes
benchmarks/results/update.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import numpy as np
import polars as pl

from benchmarks.record import save
from fieldwise import FieldwiseModel, load_flights, update
from fieldwise.fitting import train_table
from fieldwise.predicting import evaluate_table
from fieldwise.train import Running

TIMES = ("date", "month", "day")
PRESETS = ("fast", "glass", "best")
LAST = 9  # month that models are trained on before they are updated
LONG = 3
ROWS = 1000


def flights() -> dict[int, pl.DataFrame]:
    """Every month's rows."""
    parts = load_flights().partition_by("month", as_dict=True)
    return {int(month): part.drop(TIMES) for (month,), part in parts.items()}


def trained(rows: pl.DataFrame, preset: str) -> tuple[FieldwiseModel, float]:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows.write_parquet(f"{folder}/t.parquet")
        model = train_table(
            f"{folder}/t.parquet",
            f"{folder}/m",
            reading={"target": "late"},
            running=Running(show=False),
            preset=preset,
        )
    return model, time.perf_counter() - started


def judged(model: FieldwiseModel, rows: pl.DataFrame) -> dict[str, float]:
    found = evaluate_table(model, rows)
    return {name: float(found[name]) for name in ("logloss", "auc")}


def chain(preset: str, months: dict[int, pl.DataFrame], last: int) -> dict[str, Any]:
    """Trained up to the last month, then updated with one month after the other."""
    before = pl.concat([months[k] for k in range(1, last + 1)])
    still, seconds = trained(before, preset)
    out: dict[str, Any] = {"training_seconds": seconds, "months": {}}
    model = still
    for month in range(last + 1, 12):
        started = time.perf_counter()
        model = update(model, months[month])
        took = time.perf_counter() - started
        before = pl.concat([before, months[month]])
        anew, seconds = trained(before, preset)
        test = months[month + 1]
        out["months"][month] = found = {
            "rows": months[month].height,
            "left_alone": judged(still, test),
            "updated": {**judged(model, test), "seconds": took},
            "trained_anew": {**judged(anew, test), "seconds": seconds},
            "about": model.lineage[-1],
        }
        print(preset, month, {k: v for k, v in found.items() if k != "about"}, flush=True)
    return out | totals(out["months"])


def totals(months: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Means over months, the share of what training anew gains, and of its time."""
    ways = ("left_alone", "updated", "trained_anew")
    loss = {way: float(np.mean([m[way]["logloss"] for m in months.values()])) for way in ways}
    seconds = [sum(m[way]["seconds"] for m in months.values()) for way in ways[1:]]
    return {
        "mean_logloss": loss,
        "share_of_gain": (loss["left_alone"] - loss["updated"])
        / (loss["left_alone"] - loss["trained_anew"]),
        "share_of_time": seconds[0] / seconds[1],
    }


def one_category(months: dict[int, pl.DataFrame]) -> dict[str, Any]:
    """The airport with the most rows in October, unknown to the model, learned from some of them;
    judged on the rest, beside a model that knows it from the start."""
    rows = months[10]
    airport = rows["dest"].value_counts(sort=True)["dest"][0]
    before = pl.concat([months[k] for k in range(1, 10)])
    without, _ = trained(before.filter(pl.col("dest") != airport), "fast")
    with_it, _ = trained(before, "fast")
    mine = rows.filter(pl.col("dest") == airport).sample(fraction=1.0, shuffle=True, seed=0)
    first, rest = mine.head(ROWS), mine.slice(ROWS)
    without.predict_proba(first.head(3).drop("late"))
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        learned = without.learn_category("dest", airport, first)
        seconds.append(time.perf_counter() - started)
    return {
        "rows": ROWS,
        "fields": len(without.schema),
        "rank": max(without.layout.ranks),
        "seconds": float(np.median(seconds)),
        "unknown": judged(without, rest),
        "learned": judged(learned, rest),
        "known_from_the_start": judged(with_it, rest),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--presets", default=",".join(PRESETS))
    chosen = parser.parse_args().presets.split(",")
    months = flights()
    trained(months[1].head(5000), "fast")  # compiles the kernels
    figures: dict[str, Any] = {"task": "updates of flights by month, beside training anew"}
    figures["presets"] = {preset: chain(preset, months, LAST) for preset in chosen}
    if "fast" in chosen:
        figures["eight_updates"] = chain("fast", months, LONG)
    figures["one_category"] = one_category(months)
    print(figures["one_category"])
    if chosen == list(PRESETS):
        print(f"written: {save('update', 'make bench-update', figures)}")


if __name__ == "__main__":
    main()
