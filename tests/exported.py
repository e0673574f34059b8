"""Tables and models that exports are tried on: odd names, odd categories, every kind of field."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from fieldwise import FieldwiseClassifier, FieldwiseModel, FieldwiseRegressor
from fieldwise.boosted import Boosted
from fieldwise.errors import DataError

ODD = [
    "plain", "", " ", "it's", 'say "hi"', "back\\slash", "\\'", "new\nline", "tab\there", "a\r",
    "Zürich", "東京", "🦊", "e\u0301", "\u00a0x", "'); DROP TABLE input; --", "-- no", "/*", "$$",
    "{a,b}", "[1]", "NULL", "nan", "%s", "?", ":name", "1e3", "a:b;c", '"""', "<key>", "\x01",
]  # fmt: skip
TAGS = ["red", "it's", " blue ", "é\\", '"', "7", "new\nline", "{x}"]
GRADES = [0.5, 1.5, 1e-7, 1e-5, 1e20, 2.0, -3.0, 123456.789]
QUOTED = 'say "x"; --'
# Short names are those that queries use themselves.
KINDS = {
    QUOTED: "category", "e": "quantile", "v": "linear", "s": "log2", "t": "category",
    "when": "time", "tags": "list:|",
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "rank": 3, "epochs": 3, "learning_rate": 0.1, "random_state": 0, "n_jobs": 1,
}  # fmt: skip


def drawn(n: int, seed: int) -> pl.DataFrame:
    """Rows in which values are missing, and some of which were seen once or never."""
    random = np.random.default_rng(seed)
    likely = random.dirichlet(np.full(len(ODD), 0.6))
    start = dt.datetime(2023, 12, 28)

    def holes(values: Any) -> list[Any]:
        return [None if random.random() < 0.1 else v for v in values]

    return pl.DataFrame(
        {
            "place": holes(random.choice(ODD, n, p=likely).tolist()),
            QUOTED: holes(random.integers(-5, 12, n).tolist()),
            "e": holes(np.round(random.normal(0, 20, n), 2).tolist()),
            "v": holes(random.normal(5, 2, n).tolist()),
            "s": holes((random.gamma(1, 30, n).astype(int) - 3).tolist()),
            "t": random.choice(GRADES, n).tolist(),
            "k": holes((random.random(n) < 0.5).tolist()),
            "when": holes([start + dt.timedelta(hours=int(h)) for h in random.integers(0, 999, n)]),
            "tags": holes("|".join(random.choice(TAGS, k)) for k in random.integers(1, 5, n)),
            "i": holes(random.integers(0, 9, k).tolist() for k in random.integers(1, 4, n)),
        },
        schema_overrides={"i": pl.List(pl.Int64), "when": pl.Datetime("us")},
    )


def labels(frame: pl.DataFrame) -> np.ndarray:
    """Scores in which every column has a part, the first two together as well."""
    words = [frame["place"], frame[QUOTED].cast(pl.String), frame["k"].cast(pl.String)]
    words.append(words[0].fill_null("?") + words[1].fill_null("?"))
    parts = [(w.fill_null("?").hash(7).to_numpy() % 7).astype(float) / 3 - 1 for w in words]
    parts.append(frame["e"].fill_null(0).to_numpy() / 20)
    parts.append(frame["v"].fill_null(4).to_numpy() / 4 - 1.2)
    parts.append(frame["tags"].fill_null("").str.contains("red").to_numpy().astype(float))
    return np.asarray(sum(parts) + np.random.default_rng(0).normal(0, 1, len(frame)))


@cache
def model_of(kind: str) -> FieldwiseModel:
    """plain, glass (with crosses), classes (three of them), several (targets), counts or numbers"""
    frame = drawn(1500, 1)
    z = labels(frame)
    if kind in ("counts", "numbers"):
        loss = "poisson" if kind == "counts" else "squared"
        y = np.floor(np.exp(z / 3)) if kind == "counts" else z * 10
        # Weights as the paper's decay leaves them: larger ones lose digits when the model adds up.
        made = FieldwiseRegressor(kinds=KINDS, loss=loss, weight_decay=1e-5, **SETTINGS)
        return made.fit(frame, y).model_
    if kind == "classes":
        y = np.where(z > 1, 'say "yes"', np.where(z < -1, "no", "it's <z_1>"))
        return FieldwiseClassifier(kinds=KINDS, **SETTINGS).fit(frame, y).model_
    if kind == "several":
        y = np.stack([z > 0, z > 1], axis=1).astype(int)
        return FieldwiseClassifier(kinds=KINDS, **SETTINGS).fit(frame, y).model_
    more: dict[str, Any] = {}
    if kind == "glass":
        more = {"preset": "glass", "crosses": [("place", QUOTED), (QUOTED, "k", "e")]}
    return FieldwiseClassifier(kinds=KINDS, **SETTINGS, **more).fit(frame, z > 0).model_


def meaning(model: FieldwiseModel, z: np.ndarray) -> np.ndarray:
    """What scores stand for, (n, K)"""
    found = model.predictions(z)
    parts = list(found.values()) if isinstance(found, dict) else [found]
    return np.concatenate([part.reshape(len(z), -1) for part in parts], axis=1)


def score_or_none(model: FieldwiseModel, row: dict[str, Any]) -> Any:
    """What the model says of a row, None where it refuses it."""
    try:
        return model.decision_function(row)[0]
    except DataError:
        return None


def as_text(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows as a file of text would have them."""
    columns = [
        pl.col(name).dt.to_string("%Y-%m-%dT%H:%M:%S")
        if dtype == pl.Datetime
        else pl.col(name).cast(pl.List(pl.String) if dtype == pl.List else pl.String)
        for name, dtype in frame.schema.items()
    ]
    return frame.select(columns).to_dicts()


def close(found: Sequence[Any], expected: Sequence[Any], limit: float = 1e-5) -> bool:
    """The same to `limit`, and None in the same places."""
    return len(found) == len(expected) and all(
        (a is None) == (b is None) and (a is None or bool(np.allclose(a, b, atol=limit, rtol=1e-5)))
        for a, b in zip(found, expected, strict=True)
    )


# Of a model that SQL and Python cannot carry what makes it one, and what is said of it.
NOT_CARRIED: dict[str, tuple[Callable[[FieldwiseModel], FieldwiseModel], str]] = {
    "boosted": (lambda m: replace(m, boosted=Boosted([])), "boosted trees.*{}.*export to ONNX"),
    "vote": (
        lambda m: replace(m, objective=replace(m.objective, combine="vote")),
        "fields vote.*{}.*combine='sum'",
    ),
    "fm": (
        lambda m: replace(m, layout=replace(m.layout, component="fm")),
        "component is 'fm'.*{}.*'linear'",
    ),
}
