"""The HTTP interface of `fieldwise serve` in the plainest way, by http.server: for the page's tests
where the app itself is not there. Numbers come from a real model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import polars as pl

import fieldwise
from fieldwise import FieldwiseModel
from fieldwise.errors import FieldwiseError

PAGE = Path(fieldwise.__file__).parent / "serve"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


class Answers:
    """What every address answers, of one model."""

    def __init__(self, model: FieldwiseModel, name: str) -> None:
        self.model, self.name = model, name

    def schema(self) -> dict[str, Any]:
        target = self.model.schema.target
        about = {"id": self.name, "target": target.column, "classes": list(target.classes),
                 "task": {"numeric": "number"}.get(target.kind, target.kind)}  # fmt: skip
        return {"model": about, "fields": [self._field(c) for c in self.model.schema.columns]}

    def _field(self, column: str) -> dict[str, Any]:
        specs = [f for f in self.model.schema.fields if f.column == column and not f.cross]
        spec, names = specs[0], [f.name for f in specs]
        out: dict[str, Any] = {"name": column, "column": column, "dtype": spec.dtype}
        out["fields"] = names
        if spec.kind == "numeric":
            edges = spec.edges or (0.0,)
            usual = edges[len(edges) // 2]
            return {**out, "kind": "number", "usual": usual, "least": edges[0], "most": edges[-1]}
        top = self._entries(spec.name).head(20).to_dicts()
        usual = top[0]["value"] if top else None
        out |= {"usual": usual, "top": top, "n_categories": self.model.vocabulary[spec.name].size}
        if spec.part is not None:
            return {**out, "kind": "time"}
        if spec.is_list:
            return {**out, "kind": "list", "usual": None if usual is None else [usual]}
        return {**out, "kind": "category"}

    def _entries(self, field: str) -> pl.DataFrame:
        words = self.model.vocabulary[field].entries.sort("count", descending=True)
        return words.select(pl.col("category").alias("value"), "count")

    def categories(self, field: str, q: str, limit: int) -> dict[str, Any]:
        lower = pl.col("value").str.to_lowercase()
        found = self._entries(field).filter(lower.str.contains(q.lower(), literal=True))
        found = found.sort(~lower.str.starts_with(q.lower()), maintain_order=True).head(limit)
        return {"field": field, "categories": found.to_dicts()}

    def predict(self, rows: list[dict[str, Any]], *, explain: bool) -> dict[str, Any]:
        return {"model": self.name, "predictions": [self._one(row, explain) for row in rows]}

    def _one(self, row: dict[str, Any], explain: bool) -> dict[str, Any]:
        z = np.atleast_2d(self.model.decision_function(row))[0]
        found = np.atleast_1d(self.model.predictions(self.model.decision_function(row))[0])
        out: dict[str, Any] = {"prediction": float(found[-1]), "score": float(z[-1])}
        at = -1
        if len(found) > 1:
            at = int(found.argmax())
            out = {"prediction": float(found[at]), "score": float(z[at])}
            out["probabilities"] = dict(zip(self.model.classes, found.tolist(), strict=True))
        if self.model.classes:
            out["class"] = str(self.model.predict(row)[0])
        if explain:
            whole = self.model.explain(row)
            effects = whole.shapley[0] if whole.shapley.ndim == 2 else whole.shapley[0][at]
            base = np.atleast_1d(whole.base)[at]
            columns = [f.column for f in self.model.schema.fields]
            parts = [
                {"field": name, "value": self._shown(row[column]), "contribution": float(effect)}
                for name, column, effect in zip(whole.names, columns, effects, strict=True)
            ]
            out["explanation"] = {"base": float(base), "contributions": parts}
        return out

    @staticmethod
    def _shown(value: Any) -> str | None:
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return None if value is None else str(value)

    def rank(self, context: dict[str, Any], over: str, k: int) -> dict[str, Any]:
        words = self.model.vocabulary[over].entries.filter(pl.col("code") > 0).sort("code")
        rows = [{**context, over: word} for word in words["category"]]
        found = []
        for row in rows:
            z = self.model.decision_function(row)
            numbers = np.atleast_2d(z)[0][-1], np.atleast_1d(self.model.predictions(z)[0])[-1]
            found.append({"category": row[over], "score": numbers[0], "prediction": numbers[1]})
        found = [{k: v if k == "category" else float(v) for k, v in one.items()} for one in found]
        found.sort(key=lambda one: -one["prediction"])
        return {"model": self.name, "over": over, "ranking": found[:k]}


@contextmanager
def standing_in(model: FieldwiseModel, token: str | None = None) -> Iterator[str]:
    """The address of a server of this model, for as long as it is wanted."""
    answers, lock = Answers(model, "a-model"), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            said = {key: values[0] for key, values in parse_qs(url.query).items()}
            name = url.path.lstrip("/") or "page.html"
            if (PAGE / name).suffix in KINDS and "/" not in name and (PAGE / name).is_file():
                self._send(200, (PAGE / name).read_bytes(), KINDS[(PAGE / name).suffix])
            elif name == "schema":
                self._answer(answers.schema)
            elif name == "categories":
                self._answer(answers.categories, said["field"], said["q"], int(said["limit"]))
            else:
                self._send(404, b'{"error": "there is nothing here"}')

        def do_POST(self) -> None:
            url = urlsplit(self.path)
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if url.path == "/predict":
                self._answer(answers.predict, body["rows"], explain=url.query == "explain=true")
            else:
                self._answer(answers.rank, body["context"], body["over"], body["k"])

        def _answer(self, work: Any, *arguments: Any, **options: Any) -> None:
            if token is not None and self.headers["authorization"] != f"Bearer {token}":
                return self._send(401, b'{"error": "this server wants a bearer token"}')
            try:
                with lock:
                    found = work(*arguments, **options)
                return self._send(200, json.dumps(found).encode())
            except FieldwiseError as error:
                return self._send(422, json.dumps({"error": str(error)}).encode())

        def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
