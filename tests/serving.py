"""Small models of every kind, fitted once, and servers of them: what the tests of `serve` share."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise import FieldwiseClassifier, FieldwiseModel, FieldwiseRegressor, boosted

N_ROWS = 1500
KINDS = ("plain", "rare", "glass", "best", "three", "number", "vote", "vote of three")


def clicks(seed: int = 0, n: int = N_ROWS) -> pl.DataFrame:
    """A column of every kind, and three targets that follow some of them."""
    random = np.random.default_rng(seed)
    site = random.choice(["a", "b", "Bb", "c", None], n).tolist()
    hour = random.integers(0, 24, n)
    z = np.array([s in ("a", "c") for s in site]) + (hour > 12) + random.normal(0, 0.3, n)
    return pl.DataFrame(
        {
            "site": site,
            "hour": hour,
            "price": random.normal(size=n).round(2),
            "age": random.normal(40, 9, n),
            "mobile": random.random(n) < 0.5,
            "when": [
                dt.datetime(2024, 1, 1 + int(d), int(h))
                for d, h in zip(random.integers(0, 9, n), random.integers(0, 24, n), strict=True)
            ],
            "tags": [
                [f"t{k}" for k in random.choice(6, 1 + k % 3, replace=False)] for k in range(n)
            ],
            "click": (z > 1).astype(int),
            "level": np.select([z < 0.7, z < 1.4], ["low", "middle"], "high"),
            "amount": z,
        }
    )


TARGETS = ("click", "level", "amount")


def fitted(kind: str, seed: int = 0) -> FieldwiseModel:
    frame = clicks(seed)
    X = frame.drop(TARGETS)
    common = {"kinds": {"age": "linear"}, "epochs": 2, "rank": 2, "learning_rate": 0.1}
    if kind == "number":
        return FieldwiseRegressor(**common).fit(X, frame["amount"]).model_
    y = frame["level" if "three" in kind else "click"]
    more = {
        "rare": {"unseen": "rare"},
        "vote": {"combine": "vote"},
        "vote of three": {"combine": "vote"},
        "glass": {"preset": "glass"},
        "best": {"preset": "best"},
    }
    if kind in ("glass", "best"):
        X = X.drop("tags")
    before = boosted.MEMBERS, boosted.MOST_TREES
    boosted.MEMBERS, boosted.MOST_TREES = 1, 40
    try:
        return FieldwiseClassifier(**common, **more.get(kind, {})).fit(X, y).model_
    finally:
        boosted.MEMBERS, boosted.MOST_TREES = before


def rows_of(model: FieldwiseModel, n: int = 20, seed: int = 5) -> list[dict[str, Any]]:
    """Raw rows that fit a model, as JSON has them."""
    frame = (
        clicks(seed, n + 1).head(n).with_columns(pl.col("when").dt.to_string("%Y-%m-%dT%H:%M:%S"))
    )
    return frame.select(model.schema.columns).to_dicts()


# A server in a process of its own -----------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    """`fieldwise serve`, until it answers; its output is in `log` once it has ended."""

    def __init__(self, model: Path, *options: object, **environment: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "fieldwise", "serve", str(model), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self.log = ""
        end = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError):
                if self.ask("GET", "/ready")[0] == 200:
                    return
            time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"the server does not answer: {self.log}")

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the body of an answer, JSON where it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, encoded(body), headers or {})
            return read(connection.getresponse())

    def open(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self.process.stdout and not self.process.stdout.closed:
            self.log += self.process.communicate(timeout=60)[0]
        return self.process.returncode


@contextlib.contextmanager
def serving(model: Path, *options: object, **environment: str) -> Iterator[Server]:
    server = Server(model, *options, **environment)
    try:
        yield server
    finally:
        server.stop()


def encoded(body: Any) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return json.dumps(body).encode()


def read(answer: http.client.HTTPResponse) -> tuple[int, Any]:
    content = answer.read()
    if answer.headers.get_content_type() == "application/json":
        return answer.status, json.loads(content)
    return answer.status, content
