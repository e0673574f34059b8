"""Request bodies to the service, through its ASGI application in this process: every answer is one
of the documented kinds, and what is predicted is what the model predicts."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import quote_from_bytes

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet

from fieldwise import FieldwiseModel
from fieldwise.errors import FieldwiseError
from fieldwise.serve import Limits, create_app
from serving import clicks, fitted, rows_of

from .draws import Draw

__all__ = ["SEEDS", "TARGETS"]

KINDS = ("plain", "three")
LIMITS = Limits(max_body=100_000, max_rows=20, max_text=1000, max_batch_rows=500)
STREAM = "application/vnd.apache.arrow.stream"
FILE = "application/vnd.apache.arrow.file"
PARQUET = "application/vnd.apache.parquet"


class Service:
    """An application in this process, without a network."""

    def __init__(self, kind: str) -> None:
        folder = Path(mkdtemp(prefix="service-"))
        self.path = fitted(kind).save(folder / "model")
        self.model = FieldwiseModel.load(self.path)
        self.rows = rows_of(self.model, 6)
        self.app = create_app(self.path, limits=LIMITS, poll=1e6, spool=folder / "spool")
        self.loop = asyncio.new_event_loop()
        self.lifespan = self.app.router.lifespan_context(self.app)
        self.loop.run_until_complete(self.lifespan.__aenter__())

    def ask(self, method: str, path: str, body: bytes, query: bytes, kind: str) -> Any:
        """The status, the content type and the body of the answer."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query,
            "headers": [(b"content-type", kind.encode())],
            "server": ("127.0.0.1", 1),
            "client": ("127.0.0.1", 2),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        self.loop.run_until_complete(self.app(scope, receive, send))
        told = b"".join(m.get("body", b"") for m in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"])[b"content-type"].decode(), told


@cache
def service(kind: str) -> Service:
    return Service(kind)


def answered(status: int, kind: str, told: bytes) -> Any:
    """What a body of JSON says; a refusal is one message."""
    assert kind == "application/json", (status, kind)
    body = json.loads(told)
    if status != 200:
        assert 400 <= status < 500, (status, body)
        assert list(body) == ["error"], body
        assert body["error"], body
        assert "Traceback" not in body["error"], body
        return None
    return body


def body_of(draw: Draw, served: Service, usual: Any) -> bytes:
    """JSON that is nearly as it should be, or any bytes."""
    how = draw.below(8)
    if how == 0:
        return draw.rest()
    if how == 1:
        return draw.altered(json.dumps(usual).encode())
    if how < 5:
        given = draw.edited(usual)
    else:
        given = json.loads(json.dumps(usual))
        for row in given.get("rows", [given.get("context")]):
            for name in draw.some(sorted(row), 2):
                row[name] = draw.json(2) if draw.coin() else draw.text()
    return json.dumps(given, ensure_ascii=draw.coin()).encode("utf-8", "replace")


def predict(data: bytes) -> None:
    draw = Draw(data)
    served = service(draw.pick(KINDS))
    usual = {"rows": served.rows[: 1 + draw.below(2)]}
    query = draw.pick((b"", b"", b"", b"explain=true", b"explain=1", b"explain=%ff&x"))
    body = body_of(draw, served, usual)
    found = answered(*served.ask("POST", "/predict", body, query, "application/json"))
    if found is None:
        return
    rows = json.loads(body)["rows"]
    assert len(found["predictions"]) == len(rows)
    for row, one in zip(rows, found["predictions"], strict=True):
        agrees(served.model, row, one)


def agrees(model: FieldwiseModel, row: Any, one: Any) -> None:
    """A prediction is that of the model, of a table of one row."""
    columns = {name: [row[name]] for name in model.schema.columns}
    try:
        z = np.atleast_2d(model.decision_function(columns))[0]
    except FieldwiseError as error:
        raise AssertionError(f"the table is refused and the row is not: {error}; {row}") from error
    if "probabilities" in one:
        z = z[model.classes.index(one["class"])]
    told = (row, one, z)
    assert abs(one["score"] - float(np.ravel(z)[0])) <= 1e-5 * max(1, abs(one["score"])), told
    if "explanation" in one:
        said = one["explanation"]
        total = said["base"] + sum(part["contribution"] for part in said["contributions"])
        assert abs(total - one["score"]) <= 1e-3 * max(1, abs(total)), told


def rank(data: bytes) -> None:
    draw = Draw(data)
    served = service(draw.pick(KINDS))
    usual = {"context": served.rows[draw.below(6)], "over": draw.pick(("site", "hour")), "k": 3}
    body = body_of(draw, served, usual)
    found = answered(*served.ask("POST", "/rank", body, b"", "application/json"))
    if found is None:
        return
    given = json.loads(body)
    scores = [one["score"] for one in found["ranking"]]
    assert scores == sorted(scores, reverse=True) or served.model.classes.__len__() > 2, scores
    field = served.model.schema[given["over"]]
    for one in found["ranking"][:2]:
        if (
            one["category"] is None
            or field.is_binned
            or field.part
            or len(served.model.classes) > 2
        ):
            continue
        row = {**given["context"], field.column: one["category"]}
        z = served.model.decision_function({k: [row[k]] for k in served.model.schema.columns})
        assert abs(float(z[0]) - one["score"]) <= 1e-4 * max(1, abs(one["score"])), (row, one, z)


def lookup(data: bytes) -> None:
    """Queries and paths of any bytes."""
    draw = Draw(data)
    served = service("plain")
    path = draw.pick(("/categories", "/schema", "/health", "/ready", "/openapi.json", "/nowhere"))
    query = draw.pick((b"field=site&q=", b"field=hour&limit=5&q=", b"field=", b"limit=", b""))
    query += draw.rest() if draw.coin() else quote_from_bytes(draw.rest()).encode()
    answered(*served.ask(draw.pick(("GET", "GET", "POST")), path, b"", query, "text/plain"))


@cache
def batches() -> dict[str, tuple[str, bytes]]:
    """A table in every form that the service reads."""
    frame = clicks(4, 30).drop("click", "level", "amount")
    table = frame.to_arrow()
    found = {}
    for name, kind in (("stream", STREAM), ("file", FILE)):
        out = io.BytesIO()
        make = pa.ipc.new_stream if name == "stream" else pa.ipc.new_file
        with make(out, table.schema) as writer:
            writer.write_table(table)
        found[name] = kind, out.getvalue()
    for name, packing in (("plain", "none"), ("zstd", "zstd")):
        out = io.BytesIO()
        pa.parquet.write_table(table, out, compression=packing)
        found[name] = PARQUET, out.getvalue()
    return found


def batch(data: bytes) -> None:
    """Arrow and Parquet: altered bytes, or sound tables of any columns."""
    draw = Draw(data)
    served = service("plain")
    name = draw.pick(sorted(batches()))
    kind, body = batches()[name]
    frame = None
    how = draw.below(8)
    if how == 0:
        body = draw.rest()
    elif how < 4:
        body = draw.altered(body)
    else:
        frame = any_table(draw, served.model)
        body = written(frame.to_arrow(), kind)
    status, answer_kind, told = served.ask("POST", "/predict/batch", body, b"", kind)
    if status != 200:
        answered(status, answer_kind, told)
        return
    if frame is not None:
        table = read(told, kind)
        z = served.model.decision_function(frame.select(served.model.schema.columns))
        assert np.allclose(table["score"].to_numpy(), z, rtol=1e-5, atol=1e-5)


def any_table(draw: Draw, model: FieldwiseModel) -> pl.DataFrame:
    """A table in which a column or two are others, where Arrow has such a column."""
    frame = clicks(4, 3 + draw.below(4)).drop("click", "level", "amount")
    dtypes = (pl.String, pl.Int8, pl.Float32, pl.Categorical, pl.Date, pl.UInt64)
    for _ in range(1 + draw.below(2)):
        name = draw.pick(frame.columns)
        values = [draw.value(1) for _ in range(frame.height)]
        dtype = draw.pick(dtypes) if draw.below(3) == 0 else None
        place = draw.pick((name, name, name, "other"))
        with suppress(pl.exceptions.PolarsError, UnicodeEncodeError, TypeError, OverflowError):
            made = pl.Series(place, values, strict=False)
            made = made if dtype is None else frame[name].alias(place).cast(dtype, strict=False)
            if made.dtype != pl.Object:
                frame = frame.with_columns(made)
    return frame


def written(table: pa.Table, kind: str) -> bytes:
    out = io.BytesIO()
    if kind == PARQUET:
        pa.parquet.write_table(table, out)
    else:
        make = pa.ipc.new_stream if kind == STREAM else pa.ipc.new_file
        with make(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()


def read(told: bytes, kind: str) -> Any:
    if kind == PARQUET:
        return pa.parquet.read_table(io.BytesIO(told))
    opened = pa.ipc.open_stream if kind == STREAM else pa.ipc.open_file
    return opened(told).read_all()


TARGETS = {"predict": predict, "rank": rank, "lookup": lookup, "batch": batch}
SEEDS: dict[str, list[bytes]] = {}
