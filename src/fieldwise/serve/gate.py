"""What every request passes: the token, the time limit, counting, and errors as JSON."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
import polars as pl
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import FieldwiseError
from .limits import Limits, Refusal
from .metrics import Metrics

__all__ = ["Gate", "answer", "has_token", "no_route", "read_body", "refused"]

Endpoint = Callable[[Request], Awaitable[Response]]
LOG = logging.getLogger("uvicorn.error")
LONGEST = 1000  # letters of a message, which may quote what was sent
GONE = 499  # the client closed the connection before the answer; nginx's code
# Default headers: browsers must not guess the content type, and nobody may cache the answer.
PRIVATE = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class Gate:
    """ASGI middleware. A request for one of `endpoints`, by method and path, goes directly to it,
    any other to the application; those are counted together, as "other". `open_paths` need no
    token."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoints: Mapping[tuple[str, str], Endpoint],
        limits: Limits,
        metrics: Metrics,
        token: str | None,
        open_paths: frozenset[str],
    ) -> None:
        self._app, self._limits, self._metrics, self._token = app, limits, metrics, token
        self._endpoints, self._open_paths = endpoints, open_paths
        self._paths = frozenset(path for _, path in endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, path, status, is_late = time.perf_counter(), scope["path"], 0, False

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                headers = message["headers"]
                if not any(name == b"cache-control" for name, _ in headers):
                    message["headers"] = [*headers, *PRIVATE]
            await send(message)  # which waits while the client reads nothing
            if message["type"] == "http.response.start":
                status = message["status"]

        task: Any = asyncio.current_task()

        def end() -> None:
            nonlocal is_late
            is_late = True
            task.cancel()

        # What asyncio.timeout does, in a third of its time.
        clock = asyncio.get_running_loop().call_later(self._limits.seconds, end)
        try:
            self._check_token(scope)
            endpoint = self._endpoints.get((scope["method"], path))
            if endpoint is None:
                await self._app(scope, receive, sent)
            else:
                response = await endpoint(Request(scope, receive))
                await response(scope, receive, sent)
        except ClientDisconnect:
            status = GONE
        except (Exception, asyncio.CancelledError, pl.exceptions.PanicException) as error:
            clock.cancel()
            if isinstance(error, asyncio.CancelledError) and not (is_late and not task.uncancel()):
                raise  # cancelled by somebody else
            if status and is_late:
                return  # the server breaks off an answer that has begun
            if status:
                raise
            await self._told(TimeoutError() if is_late else error)(scope, receive, sent)
        finally:
            clock.cancel()
            counted = path if path in self._paths else "other"
            self._metrics.request(counted, status or GONE, time.perf_counter() - begun)

    def _check_token(self, scope: Scope) -> None:
        if scope["path"] not in self._open_paths and not has_token(scope, self._token):
            raise Refusal(
                401,
                "this server needs a token: send the header 'Authorization: Bearer TOKEN'",
                {"WWW-Authenticate": "Bearer"},
            )

    def _told(self, error: BaseException) -> Response:
        if isinstance(error, TimeoutError):
            return refused(
                408,
                f"the request took more than {self._limits.seconds:g} seconds; send less at once, "
                "or faster",
                {"Connection": "close"},
            )
        if isinstance(error, Refusal):
            return refused(error.status, str(error), error.headers)
        if isinstance(error, FieldwiseError):
            return refused(422, str(error))
        if isinstance(error, pl.exceptions.PanicException):
            return refused(422, f"the values cannot be read: {error}")
        LOG.error("a request failed", exc_info=error)
        return refused(500, "the server failed; its log has the details")


def has_token(scope: Scope, token: str | None) -> bool:
    """Whether a request carries the token, if one is required."""
    if token is None:
        return True
    given = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
    return hmac.compare_digest(given, b"Bearer " + token.encode())


async def no_route(request: Request, error: Exception) -> Response:
    """The answer to paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.scope['path'][:100]}"
    if error.status_code == 405:
        return refused(405, f"{what} is not served; another method is", error.headers)
    return refused(error.status_code, f"{what}: {error.detail}; see /openapi.json")


class Answer(Response):
    """A JSON response that writes its headers directly, which halves the cost of a response."""

    def __init__(self, body: bytes) -> None:
        self.body, self.status_code, self.background = body, 200, None
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
        ]


def answer(body: Any) -> Response:
    return Answer(orjson.dumps(body))


def refused(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps({"error": _clean(message[:LONGEST])})
    return Response(body, status, dict(headers or {}), "application/json")


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


async def read_body(request: Request, limit: int) -> bytes:
    """The body; reading stops at the limit."""
    for name, value in request.scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> Refusal:
    return Refusal(
        413, f"the body has more than {limit:,} bytes, the most per request; send it in parts"
    )
