"""An exported model under onnxruntime: microseconds of one raw row, seconds to load it.

python -m benchmarks.serve_onnx
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from time import perf_counter as clock
from typing import Any

import numpy as np
import polars as pl

from fieldwise import FieldwiseClassifier, FieldwiseModel, synthetic
from fieldwise.export import export

SHAPES = {39: 8, 22: 32}  # fields, and their rank
ROWS, TIMED, BATCH = 100_000, 5000, 4096


def _model(n_fields: int) -> tuple[FieldwiseModel, pl.DataFrame]:
    """Trained by the preset `fast` on the last columns of Criteo's shape, and rows to score."""
    every = [f"f{j}" for j in range(39)]
    with tempfile.TemporaryDirectory() as folder:
        text = synthetic("criteo", ROWS, seed=3).to_text(Path(folder) / "rows.txt")
        options = {"separator": "\t", "has_header": False, "infer_schema": False}
        frame = pl.read_csv(text, new_columns=["label", *every], **options)
    names = every[-n_fields:]
    kinds = dict.fromkeys(names, "category")
    made = FieldwiseClassifier(rank=SHAPES[n_fields], epochs=1, learning_rate=0.1, kinds=kinds)
    return made.fit(frame.select(names), frame["label"].to_numpy()).model_, frame.select(names)


def _session(path: Path) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1  # one row is too little to share
    return onnxruntime.InferenceSession(str(path), settings)


def _inputs(session: Any, frame: pl.DataFrame) -> dict[str, np.ndarray]:
    out = {}
    for wanted in session.get_inputs():
        column = frame[wanted.name]
        if wanted.type == "tensor(string)":
            out[wanted.name] = column.fill_null("").to_numpy().astype(object)[:, None]
        else:
            out[wanted.name] = column.cast(pl.Float64).fill_null(np.nan).to_numpy()[:, None]
    return out


def _row_microseconds(session: Any, frame: pl.DataFrame) -> list[float]:
    columns = _inputs(session, frame.tail(TIMED))
    given = [{name: column[k : k + 1] for name, column in columns.items()} for k in range(TIMED)]
    names = [made.name for made in session.get_outputs()]
    taken = []
    for row in given:
        start = clock()
        session.run(names, row)
        taken.append(1e6 * (clock() - start))
    return taken


def figures() -> dict[str, float]:
    """Of every shape: one raw row, texts to probability, with and without contributions; rows per
    second in batches; seconds to load, and megabytes."""
    out: dict[str, float] = {}
    for n_fields in SHAPES:
        model, frame = _model(n_fields)
        for kind, explained in (("", False), ("_explained", True)):
            with tempfile.TemporaryDirectory() as folder:
                path = export(model, Path(folder) / "m.onnx", contributions=explained)
                start = clock()
                session = _session(path)
                loaded = clock() - start
                taken = _row_microseconds(session, frame)
                size = path.stat().st_size / 1e6
            name = f"onnx_{n_fields}_fields{kind}"
            out[f"{name}_row_microseconds"] = statistics.median(taken)
            out[f"{name}_row_microseconds_p99"] = float(np.quantile(taken, 0.99))
            out[f"{name}_load_seconds"] = loaded
            out[f"{name}_megabytes"] = size
            out[f"{name}_rows_per_second"] = _batch_speed(session, frame)
    return out


def _batch_speed(session: Any, frame: pl.DataFrame) -> float:
    given = _inputs(session, frame.tail(BATCH))
    session.run(None, given)
    start = clock()
    for _ in range(3):
        session.run(None, given)
    return 3 * BATCH / (clock() - start)


def main() -> None:
    for name, value in figures().items():
        print(f"{name}: {value:,.2f}")


if __name__ == "__main__":
    main()
