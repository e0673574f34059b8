"""How long a ranking of 100,000 categories takes: 22 fields of rank 8, raw values in, the best 20
out. Weights are drawn, not trained: the work is the same. `figures` is called by the benchmark of
serving.

    python -m benchmarks.serve_rank
"""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from benchmarks.explain import model_of
from benchmarks.record import timed
from fieldwise import FieldwiseModel, Layout

CATEGORIES, N_FIELDS, RANK, ROUNDS = 100_000, 22, 8, 30


def figures() -> dict[str, float]:
    """Milliseconds: the median and the slowest of some calls, after one to warm up; and those of
    scoring as many coded rows, which is what a ranking without its shortcut takes."""
    layout = Layout.of((CATEGORIES, *(1000,) * (N_FIELDS - 1)), rank=RANK)
    model = model_of(layout)
    random = np.random.default_rng(1)

    def context() -> dict[str, Any]:
        return {f"field{i}": str(random.integers(1, 1000)) for i in range(1, N_FIELDS)}

    model.rank(context(), over="field0")
    taken = [timed(lambda: model.rank(context(), over="field0")) for _ in range(ROUNDS)]
    return {
        "categories": CATEGORIES,
        "fields": N_FIELDS,
        "columns": layout.width,
        "rank_ms": 1000 * median(taken),
        "rank_slowest_ms": 1000 * max(taken),
        "scoring_every_row_ms": 1000 * every_row(model),
    }


def every_row(model: FieldwiseModel) -> float:
    codes = np.ones((CATEGORIES, N_FIELDS), np.int32)
    codes[:, 0] = np.arange(CATEGORIES)
    model.score_codes(codes, None)
    return timed(lambda: model.score_codes(codes, None), 5)


if __name__ == "__main__":
    for name, value in figures().items():
        print(f"{name:24} {value:,.2f}")
