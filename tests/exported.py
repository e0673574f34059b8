"""Tables and models that every export is tried on: odd names, odd categories, every kind of field."""

from __future__ import annotations

import datetime as dt
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from fieldwise import FieldwiseClassifier, FieldwiseModel, FieldwiseRegressor, Schema
from fieldwise.data import Field

ODD = [
    "plain", "", " ", "it's", 'say "hi"', "back\\slash", "\\'", "new\nline", "tab\there", "a\r",
    "Zürich", "東京", "🦊", "e\u0301", "\u00a0x", "'); DROP TABLE input; --", "-- no", "/*", "$$",
    "{a,b}", "[1]", "NULL", "nan", "%s", "?", ":name", "1e3", "a:b;c", "{0}", '"""', "<key>", "\x01",
]  # fmt: skip
GRADES = [0.5, 1.5, 1e-7, 1e-5, 1e20, 2.0, -3.0, 123456.789]
QUOTED = 'say "x"; --'
SETTINGS = {"rank": 3, "epochs": 3, "learning_rate": 0.1, "random_state": 0, "n_jobs": 1}


def drawn(n: int, seed: int) -> pl.DataFrame:
    """Some of what is there may have been seen once, or not at all. Names of columns are those that
    queries use themselves."""
    random = np.random.default_rng(seed)
    likely = random.dirichlet(np.full(len(ODD), 0.6))

    def holes(values: Any, share: float = 0.1) -> list[Any]:
        return [None if random.random() < share else v for v in values]

    days = [dt.datetime(2023, 12, 28) + dt.timedelta(hours=int(h)) for h in random.integers(0, 999, n)]
    return pl.DataFrame(
        {
            "place": holes(random.choice(ODD, n, p=likely).tolist()),
            QUOTED: holes(random.integers(-5, 12, n).tolist()),
            "e": holes(np.round(random.normal(0, 20, n), 2).tolist()),
            "v": holes(random.normal(5, 2, n).tolist()),
            "s": holes((random.gamma(1, 30, n).astype(int) - 3).tolist()),
            "t": holes(random.choice(GRADES, n).tolist(), 0.0),
            "k": holes((random.random(n) < 0.5).tolist()),
            "when": days,
            "tags": holes(["|".join(random.choice(ODD_TAGS, k)) for k in random.integers(1, 5, n)]),
            "i": holes([random.integers(0, 9, k).tolist() for k in random.integers(1, 4, n)]),
        },
        schema_overrides={"i": pl.List(pl.Int64)},
    )


ODD_TAGS = ["red", "it's", " blue ", "é\\", '"', "7", "new\nline", "{x}"]
KINDS = {
    "e": "quantile", "v": "linear", "s": "log2", "t": "category", "when": "time", "tags": "list:|",
    QUOTED: "category",
}  # fmt: skip


def labels(frame: pl.DataFrame, seed: int) -> np.ndarray:
    """Something to be learned from every column."""
    random = np.random.default_rng(seed)
    parts = [frame[c].cast(pl.String).hash(7).to_numpy() % 7 for c in ("place", QUOTED, "k", "s")]
    number = frame["e"].fill_null(0).to_numpy() / 20 + frame["v"].fill_null(4).to_numpy() / 4
    z = number - 1.2 + sum((p.astype(float) - 3) / 3 for p in parts) + random.normal(0, 1, len(frame))
    z += frame["tags"].fill_null("").str.contains("red").to_numpy()
    return np.asarray(z)


@cache
def plain_model() -> FieldwiseModel:
    frame = drawn(1500, 1)
    y = (labels(frame, 1) > 0).astype(int)
    return FieldwiseClassifier(kinds=KINDS, **SETTINGS).fit(frame, y).model_
