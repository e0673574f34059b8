"""Does a category's model gain by being a small factorisation machine? component="fm" beside
"linear" on real tables.

    make bench-components

Writes benchmarks/results/components.json. Both run with the same rank and seed; steps are chosen on
the validation rows, the test rows are read once. Real tables lie in shared/data beside the project
and are left out where absent. Times are those of the kernels for "linear" and of the slow engine
for "fm".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.record import save
from fieldwise import FieldwiseClassifier
from fieldwise.metrics import binary_metrics

FOLDER = Path(__file__).parents[2] / "shared" / "data"
RANK = 4
LEFT_OUT = {
    "hotel": ["is_canceled", "reservation_status", "reservation_status_date"],
    "incidents": ["number", "opened_at"],
    "flights": ["time_hour", "arr_delay", "dep_delay", "air_time", "sched_arr_time", "distance"],
}
MOST_ROWS = {"hotel": 30_000, "flights": 100_000}  # the slow engine would take hours


def tables() -> Iterator[tuple[str, list[pl.DataFrame]]]:
    """Train, validation and test rows, each with a column `label`."""
    for name in ("access", "incidents", "hotel", "flights"):
        if (FOLDER / name).exists():
            file = "flights.parquet" if name == "flights" else "data.parquet"
            frame = pl.read_parquet(FOLDER / name / file).drop(LEFT_OUT.get(name, []))
            yield name, cut(frame.sample(min(frame.height, MOST_ROWS.get(name, 1 << 30)), seed=0))
    if (FOLDER / "frappe").exists():
        read = [
            pl.read_parquet(FOLDER / "frappe" / f"{name}.parquet")
            for name in ("train", "valid", "test")
        ]
        yield "frappe", [frame.drop("resampled_item", strict=False) for frame in read]


def cut(frame: pl.DataFrame) -> list[pl.DataFrame]:
    n = frame.height
    order = np.random.default_rng(0).permutation(n)
    return [frame[rows] for rows in np.split(order, [int(0.8 * n), int(0.9 * n)])]


def fitted(component: str, parts: list[pl.DataFrame]) -> dict[str, Any]:
    split = [(part.drop("label"), part["label"].to_numpy()) for part in parts]
    started = time.perf_counter()
    model = FieldwiseClassifier(component=component, rank=RANK, random_state=0)
    model.fit(*split[0], eval_set=split[1])
    seconds = time.perf_counter() - started
    found = binary_metrics(model.decision_function(split[2][0]), split[2][1])
    return {
        "validation_logloss": model.model_.metrics["logloss"],
        "test_logloss": found["logloss"],
        "test_auc": found["auc"],
        "seconds": seconds,
        "epochs": len(model.history_),
    }


def main() -> None:
    out: dict[str, Any] = {}
    for name, parts in tables():
        out[name] = {"rows": sum(p.height for p in parts), "fields": parts[0].width - 1}
        for component in ("linear", "fm"):
            out[name][component] = fitted(component, parts)
            print(name, component, out[name][component], flush=True)
    figures = {"task": f"linear and fm components, rank {RANK}", "tables": out}
    print(f"written: {save('components', 'make bench-components', figures)}")


if __name__ == "__main__":
    main()
