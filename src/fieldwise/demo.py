"""`fieldwise demo`: late flights, by field-wise learning and by the methods tried most often."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table

from .baselines.classifier import BaselineClassifier
from .data.datasets import load_flights
from .data.encoder import FieldEncoder
from .estimators import FieldwiseClassifier
from .metrics import binary_metrics

__all__ = ["run_demo"]

Scores = Callable[[], np.ndarray]


def run_demo() -> None:
    """Compare methods on one random split: 80 % train, 10 % validation, 10 % test, scored once."""
    console = Console(highlight=False)
    flights = load_flights()
    order = np.random.default_rng(0).permutation(flights.height)
    cuts = [int(0.8 * flights.height), int(0.9 * flights.height)]
    train, valid, test = (flights[part] for part in np.split(order, cuts))
    X = [part.drop("late") for part in (train, valid, test)]
    y = [part["late"].to_numpy() for part in (train, valid, test)]
    console.print(
        f"{train.height:,} flights to train on, {test.height:,} to test on: "
        "which arrive 15 or more minutes late?"
    )
    model = FieldwiseClassifier()

    def field_wise() -> np.ndarray:
        return model.fit(X[0], y[0], eval_set=(X[1], y[1])).decision_function(X[2])

    def boosted() -> np.ndarray:
        trees = BaselineClassifier("GBDT").fit(X[0], y[0], eval_set=(X[1], y[1]))
        return trees.decision_function(X[2])

    methods: list[tuple[str, Scores]] = [
        ("field-wise", field_wise),
        ("logistic regression", lambda: _logistic(X, y)),
    ]
    try:
        import lightgbm  # noqa: F401

        methods.append(("LightGBM", boosted))
    except ImportError:
        words = '(LightGBM is not installed: pip install "fieldwise[boost]" adds its row)'
        console.print(words, markup=False)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("method")
    for name in ("test logloss", "test AUC", "seconds"):
        table.add_column(name, justify="right")
    for name, scores in methods:
        started = time.perf_counter()
        with console.status(name):
            z = scores()
        seconds = time.perf_counter() - started
        found = binary_metrics(z, y[2])
        row = (f"{found['logloss']:.4f}", f"{found['auc']:.4f}", f"{seconds:.1f}")
        table.add_row(name, *row)
    console.print(table)
    top = list(model.model_.importance().items())[:5]
    console.print("Most important fields: " + ", ".join(f"{n} {v:.3f}" for n, v in top))


def _logistic(X: list[pl.DataFrame], y: list[np.ndarray]) -> np.ndarray:
    """Scores of the test part; the L2 strength is chosen on the validation part."""
    from scipy.sparse import csr_array
    from sklearn.linear_model import LogisticRegression

    encoder = FieldEncoder(unseen="rare").fit(X[0])
    codes = [encoder.transform(part) for part in X]
    sizes = np.max([c.max(axis=0) for c in codes], axis=0) + 1
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def one_hot(part: np.ndarray) -> csr_array:
        n, m = part.shape
        ends = np.arange(0, n * m + 1, m)
        columns = (part + offsets).ravel()
        return csr_array((np.ones(n * m, np.float32), columns, ends), shape=(n, int(sizes.sum())))

    hot = [one_hot(part) for part in codes]
    fits = [LogisticRegression(C=c, max_iter=60, tol=1e-3).fit(hot[0], y[0]) for c in (0.1, 1.0)]
    losses = [binary_metrics(f.decision_function(hot[1]), y[1])["logloss"] for f in fits]
    out: np.ndarray = fits[int(np.argmin(losses))].decision_function(hot[2])
    return out
