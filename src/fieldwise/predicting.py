"""Predictions for a table of any size, written as they are made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from .errors import SettingError
from .files import disk_errors
from .losses import sigmoid
from .model import FieldwiseModel

__all__ = ["write_predictions"]


def write_predictions(model: FieldwiseModel, data: Any, out: str | Path, **options: Any) -> int:
    """One column `probability`, in the order of rows, as Parquet or CSV; the number of rows.

    Written under a temporary name and renamed, so `out` is whole or as it was.
    """
    out = Path(out)
    if out.suffix not in (".parquet", ".csv"):
        raise SettingError(f"{out}: predictions are written as .parquet or .csv")
    temporary = out.with_name(f".{out.name}.tmp")
    n_rows = 0
    with disk_errors(out):
        try:
            with temporary.open("wb") as file:
                parts = []
                for _, z in model.score_chunks(data, **options):
                    frame = pl.DataFrame({"probability": sigmoid(z.astype(np.float64))})
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
    return n_rows
