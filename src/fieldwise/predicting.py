"""Predictions for a table of any size, written as they are made, and how good they are."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from .data.encoding import target_values, weight_values
from .errors import SettingError
from .files import disk_errors
from .metrics import head_metrics
from .model import FieldwiseModel

__all__ = ["evaluate_table", "write_predictions"]


def evaluate_table(model: FieldwiseModel, data: Any, **options: Any) -> dict[str, Any]:
    """Metrics of a model on a table with its target, weighted where the model has a weight.

    `unseen` gives, for fields with values training never saw, the share of such rows.
    """
    started = time.perf_counter()
    n_unseen = np.zeros(model.layout.n_fields, np.int64)
    parts = [
        (z, target_values(chunk, model.schema), weight_values(chunk, model.schema))
        for chunk, z in model.score_chunks(data, n_unseen, **options)
    ]
    z, y, w = map(np.concatenate, zip(*parts, strict=True))
    seconds = time.perf_counter() - started
    return {
        **head_metrics(model.head, z, y, w),
        "rows": len(z),
        "rows_per_second": len(z) / seconds,
        "unseen": model.unseen_shares(n_unseen, len(z)),
    }


def write_predictions(
    model: FieldwiseModel, data: Any, out: str | Path, **options: Any
) -> tuple[int, dict[str, float]]:
    """Predictions in the order of rows, as Parquet or CSV: a column `probability`, or one a class,
    or `prediction`.

    Written under a temporary name and renamed, so `out` is whole or as it was. Returns the number
    of rows and the shares of unseen values.
    """
    out = Path(out)
    if out.suffix not in (".parquet", ".csv"):
        raise SettingError(f"{out}: predictions are written as .parquet or .csv")
    temporary = out.with_name(f".{out.name}.tmp")
    n_unseen = np.zeros(model.layout.n_fields, np.int64)
    n_rows = 0
    with disk_errors(out):
        try:
            with temporary.open("wb") as file:
                parts = []
                for _, z in model.score_chunks(data, n_unseen, **options):
                    frame = _frame(model, model.predictions(z))
                    n_rows += frame.height
                    if out.suffix == ".csv":
                        frame.write_csv(file, include_header=n_rows == frame.height)
                    else:
                        parts.append(frame.cast(pl.Float32))
                if out.suffix == ".parquet":
                    pl.concat(parts).write_parquet(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, out)
        finally:
            temporary.unlink(missing_ok=True)
    return n_rows, model.unseen_shares(n_unseen, max(n_rows, 1))


def _frame(model: FieldwiseModel, found: np.ndarray) -> pl.DataFrame:
    if model.head.loss == "softmax":
        names = [f"probability_{name}" for name in model.classes]
        return pl.DataFrame(found, schema=names, orient="row")
    name = "probability" if model.head.loss == "logistic" else "prediction"
    return pl.DataFrame({name: found})
