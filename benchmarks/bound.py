"""The bound over ranks on the flights, and how long norms and bound take at the paper's sizes.

    python -m benchmarks.bound

Writes benchmarks/results/bound.json and docs/images/bound.png.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.record import save
from fieldwise.compare.paper import SIZES
from fieldwise.data.datasets import flights_path
from fieldwise.explain import bound_of
from fieldwise.layout import Layout
from fieldwise.maths import importance
from fieldwise.train import TrainSettings
from fieldwise.trend import bound_table
from fieldwise.trend.figures import best_row, draw_trend

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "bound.png"
SEEDS = (0, 1, 2)
SHAPES: dict[str, dict[str, Any]] = {"criteo": {"rank_base": 1.6}, "avazu": {"rank": 8}}


def trend(seed: int) -> dict[str, Any]:
    """`fieldwise bound flights --target late --seed SEED`"""
    with TemporaryDirectory() as folder:
        begun = time.perf_counter()
        settings = TrainSettings(seed=seed)
        body = bound_table(
            flights_path(), Path(folder) / "out", settings=settings, reading={"target": "late"}
        )
        seconds = time.perf_counter() - begun
    if seed == SEEDS[0]:
        PICTURE.write_bytes(draw_trend(body) or b"")
    best = best_row(body) or {}
    rows = [
        {k: row[k] for k in ("rank", "parameters", "status", "steps", "train_loss")}
        | {"validation_loss": row["validation_loss"]}
        | {k: row["bound"][k] for k in ("sum", "rademacher", "total")}
        for row in body["ranks"]
    ]
    about = {k: body[k] for k in ("threshold", "chosen", "best")}
    return {"seed": seed, **about, "seconds": seconds, "ranks": rows, "gap": best.get("gap")}


def speed(name: str) -> dict[str, Any]:
    layout = Layout.of(SIZES[name], **SHAPES[name])
    table = np.random.default_rng(0).random((layout.n_rows, layout.width), dtype=np.float32)
    begun = time.perf_counter()
    importance(table, layout)
    between = time.perf_counter()
    bound_of(table, layout, [""] * layout.n_fields, 36_000_000, train_loss=0.42)
    return {
        "parameters": layout.n_parameters,
        "importance_seconds": between - begun,
        "bound_seconds": time.perf_counter() - between,
    }


if __name__ == "__main__":
    figures = {
        "flights": [trend(seed) for seed in SEEDS],
        "speed": {name: speed(name) for name in SHAPES},
    }
    print(save("bound", "python -m benchmarks.bound", figures))
