"""Predictions for tables of any size, written to a file, and the metrics of a model on a table."""

from __future__ import annotations

import io
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from .data.labels import target_values, weight_values
from .data.readers import check_not_read
from .errors import SettingError
from .files import write_atomically
from .metrics import measure
from .model import FieldwiseModel

__all__ = ["evaluate_table", "write_predictions"]


def evaluate_table(model: FieldwiseModel, data: Any, **options: Any) -> dict[str, Any]:
    """Metrics of a model on a table with its targets, weighted if the schema has a weight column.

    `unseen` gives, per field with values never seen in training, the share of such rows.
    """
    started = time.perf_counter()
    n_unseen = np.zeros(model.layout.n_fields, np.int64)
    parts = [
        (
            *model.scores_by_target(*coded),
            target_values(chunk, model.schema),
            weight_values(chunk, model.schema),
        )
        for chunk, coded in model.coded_chunks(data, n_unseen, **options)
    ]
    *z, y, w = map(np.concatenate, zip(*parts, strict=True))
    seconds = time.perf_counter() - started
    names = [target.column for target in model.schema.targets]
    return {
        **measure(model.objective.heads, z, y, w, names),
        "rows": len(y),
        "rows_per_second": len(y) / seconds,
        "unseen": model.unseen_shares(n_unseen, len(y)),
    }


def write_predictions(
    model: FieldwiseModel, data: Any, out: str | Path, **options: Any
) -> tuple[int, dict[str, float]]:
    """Write predictions in row order, as Parquet or CSV: a column `probability`, one per class, or
    `prediction`; with several targets, prefixed by the target's name.

    `out` is complete or left as it was. Returns the number of rows and the shares of unseen values.
    """
    out = Path(out)
    if out.suffix not in (".parquet", ".csv"):
        raise SettingError(f"{out}: predictions are written as .parquet or .csv")
    check_not_read(out, data)
    n_unseen = np.zeros(model.layout.n_fields, np.int64)
    n_rows = 0

    def content() -> Iterator[bytes | memoryview]:
        nonlocal n_rows
        parts = []
        for _, coded in model.coded_chunks(data, n_unseen, **options):
            frame = _frame(model, model.score_codes(*coded))
            n_rows += frame.height
            if out.suffix == ".csv":
                yield frame.write_csv(include_header=n_rows == frame.height).encode()
            else:
                parts.append(frame.cast(pl.Float32))
        if out.suffix == ".parquet":
            whole = io.BytesIO()
            pl.concat(parts).write_parquet(whole)
            yield whole.getbuffer()

    write_atomically(out, content())
    return n_rows, model.unseen_shares(n_unseen, max(n_rows, 1))


def _frame(model: FieldwiseModel, z: np.ndarray) -> pl.DataFrame:
    found = model.predictions(z)
    several = len(model.objective.heads) > 1
    columns: dict[str, np.ndarray] = {}
    for head, target in zip(model.objective.heads, model.schema.targets, strict=True):
        part = found[target.column] if several else found
        name = f"{target.column}_" if several else ""
        if head.loss == "softmax":
            for label, column in zip(target.classes, part.T, strict=True):
                columns[_fresh(f"{name}probability_{label}", columns)] = column
        else:
            word = "probability" if head.is_class else "prediction"
            columns[_fresh(name + word, columns)] = part
    return pl.DataFrame(columns)


def _fresh(name: str, taken: Container[str]) -> str:
    """A name that no other column has: a class of one target may be named as another target."""
    while name in taken:
        name += "_1"
    return name
