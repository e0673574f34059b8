"""The endpoints. Each reads its body itself, within limits, and answers bytes. The gate calls them
directly: FastAPI has the routes and their description, and no part in a prediction."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import MissingExtra

try:
    import orjson
    from fastapi import FastAPI, Request, Response
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.exceptions import HTTPException

    from .gate import Gate, answer, has_token, no_route, read_body
    from .metrics import Metrics
    from .openapi import PAGE_FILES, ROUTES, described
    from .tables import KINDS, score_table
except ImportError as error:
    raise MissingExtra(error.name or "fastapi", "serve") from error
from .limits import Limits, Refusal
from .live import LiveModel
from .scoring import Served

__all__ = ["create_app"]

LOG = logging.getLogger("uvicorn.error")
AT_ONCE = 2  # tables held and scored at the same time
OPEN = frozenset((*PAGE_FILES, "/health", "/ready"))  # these reveal nothing of the model
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def create_app(
    model: str | Path | LiveModel,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    poll: float = 1.0,
    spool: str | Path | None = None,
) -> FastAPI:
    """An ASGI application that serves the model in a folder, and every later one put there.

    Parameters
    ----------
    model : the folder of a model.
    limits : limits of a request; see `Limits`.
    token : the bearer token that requests need; None takes FIELDWISE_TOKEN of the environment.
    poll : seconds between two checks of the folder for a new model.
    spool : where copies of models are kept; None is a temporary folder.
    """
    limits = limits or Limits()
    token = token or os.environ.get("FIELDWISE_TOKEN") or None
    metrics = Metrics()
    live = model if isinstance(model, LiveModel) else LiveModel(model, spool)
    endpoints = Endpoints(live, limits, metrics, token)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with endpoints.watching(poll):
                yield
        finally:
            endpoints.close()

    routes = {
        (method, path): getattr(endpoints, name) for path, (method, name, _) in ROUTES.items()
    }
    untold: Any = dict.fromkeys(("tracing", "metrics", "logs"), False)  # /metrics has ours
    app = FastAPI(
        title="fieldwise",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers={HTTPException: no_route},
        telemetry=untold,
    )
    for (method, path), endpoint in routes.items():
        about = {"methods": [method], "response_class": Response, **ROUTES[path][2]}
        app.add_api_route(path, endpoint, **about)
    # Before all of FastAPI's own work, which takes as long as a small model.
    app.middleware_stack = Gate(
        app.build_middleware_stack(),
        endpoints=routes,
        limits=limits,
        metrics=metrics,
        token=token,
        open_paths=OPEN,
    )
    endpoints.app = app
    return app


class Endpoints:
    """The endpoints, each of which takes a request and returns a response."""

    def __init__(
        self, live: LiveModel, limits: Limits, metrics: Metrics, token: str | None
    ) -> None:
        self._live, self._limits, self._metrics, self._token = live, limits, metrics, token
        self.app: FastAPI
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fieldwise")
        self._watcher = ThreadPoolExecutor(1, thread_name_prefix="fieldwise-watch")
        self._room = asyncio.Semaphore(AT_ONCE)
        self._described: tuple[str, bytes] = ("", b"")
        folder = resources.files(__package__)
        self._page = {
            path: (folder.joinpath(name).read_bytes(), kind)
            for path, (name, kind) in PAGE_FILES.items()
        }

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._watcher.shutdown()
        self._metrics.close()
        self._live.close()

    @asynccontextmanager
    async def watching(self, seconds: float) -> AsyncIterator[None]:
        """Load a model, or fail, and check the folder regularly in this context."""
        await self._watched(self._live.load)
        task = asyncio.create_task(self._watch(seconds))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch(self, seconds: float) -> None:
        while True:
            try:
                await self._watched(self._live.look)
            except Exception:
                LOG.exception("the model's folder cannot be watched")
            await asyncio.sleep(seconds)

    async def _watched(self, look: Callable[[], Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._watcher, look)
        self._metrics.follow(self._live)

    @property
    def _served(self) -> Served:
        if self._live.now is None:
            raise Refusal(503, "no model is loaded yet; try again", {"Retry-After": "1"})
        return self._live.now

    async def _apart(
        self, work: Callable[..., Any], *arguments: Any, room: asyncio.Semaphore | None = None
    ) -> Any:
        """The result of longer work, done in a thread. `room` is released when the thread is done,
        which may be after the request has run out of time."""
        loop = asyncio.get_running_loop()
        thread = self._threads.submit(work, *arguments)
        if room is not None:
            thread.add_done_callback(lambda _: loop.call_soon_threadsafe(room.release))
        return await asyncio.wrap_future(thread)

    async def predict(self, request: Request) -> Response:
        """Predict rows of raw values."""
        served, limits = self._served, self._limits
        deadline = time.monotonic() + limits.seconds
        explain = _flag(request, "explain")
        body = await read_body(request, limits.max_body)
        rows = _given(_parsed(body, {"rows"}), "rows", list)
        if len(rows) > limits.max_rows:
            raise Refusal(
                413,
                f"{len(rows):,} rows, and {limits.max_rows:,} is the most per request; send them "
                "in parts, or a table to /predict/batch",
            )
        found: list[dict[str, Any]] = []
        if rows:
            max_text = limits.max_text if len(body) > limits.max_text else None
            codes, values = await served.code_in_turns(rows, max_text)
            work = partial(served.predict, rows, codes, values, explain=explain, deadline=deadline)
            is_quick = served.is_quick(len(rows), explain=explain)
            found = work() if is_quick else await self._apart(work)
        self._metrics.rows("/predict", len(rows))
        return answer({"model": served.id, "predictions": found})

    async def predict_batch(self, request: Request) -> Response:
        """Predict the rows of a table, Arrow or Parquet."""
        served, limits = self._served, self._limits
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in KINDS:
            raise Refusal(
                415, f"the content type is {kind[:100]!r}; it should be one of {', '.join(KINDS)}"
            )
        deadline = time.monotonic() + limits.seconds
        unseen: list[tuple[str, int]] = []
        await self._room.acquire()  # a body is read only when there is room for it
        try:
            body = await read_body(request, limits.max_batch_body)
        except BaseException:
            self._room.release()
            raise
        work = (served, body, kind, limits, deadline, unseen)
        content, n_rows = await self._apart(score_table, *work, room=self._room)
        for field, n in unseen:
            self._metrics.unseen(field, n)
        self._metrics.rows("/predict/batch", n_rows)
        return Response(content, media_type=kind, headers={"X-Fieldwise-Model": served.id})

    async def rank(self, request: Request) -> Response:
        """Rank all categories of one field in a context."""
        served = self._served
        body = await read_body(request, self._limits.max_body)
        given = _parsed(body, {"context", "over", "k"})
        context = _given(given, "context", dict)
        over, k = _given(given, "over", str), given.get("k", 20)
        if type(k) is float and k.is_integer():  # as JSON has it, 3.0 is a whole number
            k = int(k)
        if type(k) is not int or k < 1:
            raise Refusal(422, f"k={str(k)[:20]} is not a whole number of at least 1")
        served.check_context(context, over, self._limits.max_text)
        found = await self._apart(served.rank, context, over, min(k, self._limits.max_rows))
        return answer({"model": served.id, "over": over, "ranking": found})

    async def schema(self, request: Request) -> Response:
        """What the model's columns are and what is usual in them."""
        return answer(self._served.description.schema)

    async def categories(self, request: Request) -> Response:
        """Categories of a field, by what they begin with or have inside."""
        query = request.query_params
        if "field" not in query:
            raise Refusal(422, "field is not given; say which: /categories?field=NAME&q=TEXT")
        limit = query.get("limit", "20")
        if not (limit.isdecimal() and len(limit) < 5 and 1 <= int(limit) <= 1000):
            raise Refusal(422, f"limit={limit[:20]!r} is not a whole number from 1 to 1000")
        field, text = query["field"], query.get("q", "")
        find = self._served.description.categories
        found = await self._apart(find, field, text, int(limit))
        return answer({"field": field, "categories": found})

    async def health(self, request: Request) -> Response:
        """Whether the server is alive, what it serves and, for requests that carry the token, what
        is wrong with the model's folder."""
        served, problem = self._live.now, self._live.problem
        may_know = has_token(request.scope, self._token)
        return answer(
            {
                "status": "ok" if served and not problem else "degraded",
                "model": served.id if served else None,
                "loaded_at": served.loaded_at if served else None,
                "problem": problem if may_know else None,
                "refused": self._live.n_refusals,
                "fieldwise": __version__,
            }
        )

    async def is_ready(self, request: Request) -> Response:
        """Whether there is a model to serve."""
        return answer({"model": self._served.id})

    async def metrics(self, request: Request) -> Response:
        """Counts and times, for Prometheus."""
        self._metrics.follow(self._live)
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def openapi(self, request: Request) -> Response:
        """This description, of the model that is served."""
        served = self._served
        if self._described[0] != served.id:
            self._described = served.id, orjson.dumps(described(self.app, served))
        return Response(self._described[1], media_type="application/json")

    async def page(self, request: Request) -> Response:
        """The page, or a file of it."""
        content, kind = self._page[request.scope["path"]]
        headers = {
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        }
        return Response(content, headers=headers, media_type=kind)


def _parsed(body: bytes, names: set[str]) -> dict[str, Any]:
    """The body as a JSON object with no other names than these."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if type(given) is not dict:
        raise Refusal(422, "the body is not an object; see /openapi.json")
    unknown = given.keys() - names
    if unknown:
        known = ", ".join(sorted(names))
        raise Refusal(422, f"the body has {min(unknown)[:100]!r}, and may have {known}")
    return given


def _given(body: dict[str, Any], name: str, kind: type) -> Any:
    """The body's value of a name, which must be of this kind."""
    value = body.get(name)
    if type(value) is not kind:
        word = {"list": "a list", "dict": "an object", "str": "a text"}[kind.__name__]
        raise Refusal(422, f"the body has no {name!r} that is {word}; see /openapi.json")
    return value


def _flag(request: Request, name: str) -> bool:
    if not request.scope["query_string"]:
        return False
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise Refusal(422, f"{name}={value[:20]!r} is not true or false")
    return value == "true"
