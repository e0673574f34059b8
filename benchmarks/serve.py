"""How fast models are served: one row beside an empty endpoint, steady load, whole tables, presets,
ranking, exports; and how small they get.

    make bench-serve                        # every figure
    python -m benchmarks.serve batch        # some; the others stay as they are

Writes benchmarks/results/serve.json. The server and the load come from processes of their own, over
the loopback; ratios are of one run, rounds in turns.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from benchmarks import serve_compress, serve_onnx, serve_rank, serve_sql
from benchmarks.record import RESULTS, save, timed
from fieldwise import FieldwiseClassifier, FieldwiseModel, load_flights, synthetic
from fieldwise.data.planted import AVAZU_SIZES, CRITEO_SIZES

ROUNDS, SECONDS = 5, 4.0
RATE, WORKERS = 300, 2
BATCH_ROWS = 100_000
STREAM = "application/vnd.apache.arrow.stream"
FOLDER = tempfile.TemporaryDirectory()


def empty_app() -> Any:
    """What the fastest endpoint of FastAPI costs."""
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/empty")
    async def empty() -> dict[str, str]:
        return {}

    return app


def text_frame(shape: str, sizes: tuple[int, ...], n_rows: int) -> pl.DataFrame:
    """Rows of the paper's shape, every value a text; the label is an integer."""
    text = synthetic(shape, n_rows, seed=3).to_text(Path(FOLDER.name) / f"{shape}.txt")
    names = ["label", *(f"f{j}" for j in range(len(sizes)))]
    tabs = shape == "criteo"
    options = {"separator": "\t" if tabs else ",", "has_header": not tabs, "infer_schema": False}
    frame = pl.read_csv(text, **options)
    if not tabs:
        frame = frame.drop("id")
    return frame.rename(dict(zip(frame.columns, names, strict=True)))


@cache
def model_of(shape: str) -> tuple[Path, pl.DataFrame]:
    """A model of a shape in a folder, and the fields of rows like those it learned from."""
    sizes = {"criteo": CRITEO_SIZES, "avazu": AVAZU_SIZES}[shape]
    frame = text_frame(shape, sizes, BATCH_ROWS)
    X = frame.drop("label")
    kinds = dict.fromkeys(X.columns, "category")
    estimator = FieldwiseClassifier(rank=8, epochs=1, learning_rate=0.1, kinds=kinds)
    model = estimator.fit(X, frame["label"].to_numpy()).model_
    path = Path(FOLDER.name) / f"{shape}.model"
    model.save(path)
    return path, X


class Running(NamedTuple):
    """A server: where it answers, and its process."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Of the process so far, which other busy processes do not change much."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(*command: str) -> Iterator[Running]:
    """A server in a process of its own, on a port that is free, once it answers."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", *command, "--port", str(port)])
    try:
        for _ in range(600):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0 and answers(port):
                    break
            time.sleep(0.1)
        yield Running(port, process.pid)
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status in (200, 404)
    except OSError:
        return False
    finally:
        connection.close()


def serving(path: Path, workers: int = 1) -> Any:
    return running("fieldwise", "serve", str(path), "--workers", str(workers))


def load(server: Running, path: str, *options: str, seconds: float | None = None) -> dict[str, Any]:
    where = [str(server.port), path, str(seconds or SECONDS)]
    begun = server.cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load", *where, *options],
        capture_output=True,
        text=True,
        check=True,
    )
    out: dict[str, Any] = json.loads(done.stdout)
    assert out["failed"] == 0, out
    spent = server.cpu_seconds() - begun
    return {**out, "cpu_microseconds": 1e6 * spent / out["requests"]}


def bodies_of(rows: list[dict[str, Any]]) -> str:
    """A file with a call of one row a line."""
    file = Path(FOLDER.name) / "bodies"
    file.write_text("\n".join(json.dumps({"rows": [row]}) for row in rows))
    return str(file)


def one_row() -> dict[str, Any]:
    """Requests a second of /predict with one row of 39 texts, beside those of an empty endpoint."""
    path, X = model_of("criteo")
    bodies = bodies_of(X.tail(2000).to_dicts())
    empty = ("uvicorn", "benchmarks.serve:empty_app", "--factory", "--log-level", "warning")
    runs: dict[str, list[dict[str, Any]]] = {"empty": [], "predict": []}
    with running(*empty, "--no-access-log") as bare, serving(path) as server:
        for k in range(ROUNDS + 1):  # the first is for warming up
            found = {
                "empty": load(bare, "/empty"),
                "predict": load(server, "/predict", "--bodies", bodies),
            }
            for name in runs if k else ():
                runs[name].append(found[name])

    def middle(of: str) -> dict[str, float]:
        return {name: statistics.median(run[of] for run in own) for name, own in runs.items()}

    speed, cpu = middle("requests_per_second"), middle("cpu_microseconds")
    pairs = zip(runs["predict"], runs["empty"], strict=True)
    ratios = [a["requests_per_second"] / b["requests_per_second"] for a, b in pairs]
    return {
        "fields": len(CRITEO_SIZES),
        "requests_per_second": speed["predict"],
        "empty_requests_per_second": speed["empty"],
        "share_of_empty": statistics.median(ratios),
        "cpu_microseconds": cpu["predict"],
        "empty_cpu_microseconds": cpu["empty"],
        "all_shares": ratios,
    }


def steady() -> dict[str, Any]:
    """Milliseconds of one row at a steady rate, with several workers."""
    path, X = model_of("criteo")
    bodies = bodies_of(X.tail(2000).to_dicts())
    with serving(path, WORKERS) as server:
        load(server, "/predict", "--bodies", bodies, seconds=2)
        found = load(server, "/predict", "--bodies", bodies, "--rate", str(RATE), seconds=20)
    del found["cpu_microseconds"]  # of the process that started the workers
    return {"workers": WORKERS, "rate": RATE, **found}


def batch() -> dict[str, Any]:
    """Rows a second of /predict/batch, 22 fields of text: Arrow in, Arrow out."""
    path, X = model_of("avazu")
    out = BytesIO()
    X.write_ipc_stream(out)
    body, taken = out.getvalue(), []
    with serving(path) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        for _ in range(ROUNDS + 1):
            begun = time.perf_counter()
            connection.request("POST", "/predict/batch", body, {"Content-Type": STREAM})
            answer = connection.getresponse()
            content = answer.read()
            taken.append(time.perf_counter() - begun)
            assert answer.status == 200, content[:500]
    assert pl.read_ipc_stream(content).height == X.height
    return {
        "fields": X.width,
        "rows": X.height,
        "megabytes": len(body) / 1e6,
        "rows_per_second": X.height / statistics.median(taken[1:]),
    }


def presets() -> dict[str, Any]:
    """Microseconds of one row of the flights, in this process, and of one call, by preset."""
    flights = load_flights().sample(40_000, seed=0)
    rows = flights.drop("late").tail(500).to_dicts()
    bodies = bodies_of(rows)
    out = {}
    for preset in ("fast", "glass", "best"):
        path = Path(FOLDER.name) / preset
        estimator = FieldwiseClassifier(preset=preset)
        estimator.fit(flights.drop("late"), flights["late"]).model_.save(path)
        model = FieldwiseModel.load(path)
        model.predict_proba(rows[0])
        taken = [timed(lambda row=row, model=model: model.predict_proba(row)) for row in rows]
        with serving(path) as server:
            load(server, "/predict", "--bodies", bodies, "--connections", "1", seconds=1)
            found = load(server, "/predict", "--bodies", bodies, "--connections", "1")
        out[preset] = {
            "row_microseconds": 1e6 * statistics.median(taken),
            "call_milliseconds": found["milliseconds"],
            "call_cpu_microseconds": found["cpu_microseconds"],
        }
    return out


FIGURES: dict[str, Callable[[], dict[str, Any]]] = {
    "one_row": one_row,
    "steady": steady,
    "batch": batch,
    "presets": presets,
    "rank": serve_rank.figures,
    "onnx": serve_onnx.figures,
    "sql": serve_sql.figures,
    "compress": serve_compress.figures,
}


def main() -> None:
    file = RESULTS / "serve.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    figures = {name: before[name] for name in FIGURES if name in before}
    for name in sys.argv[1:] or FIGURES:
        figures[name] = FIGURES[name]()
        print(name, json.dumps(figures[name]), flush=True)
    print(f"written: {save('serve', 'make bench-serve', figures)}")


if __name__ == "__main__":
    main()
