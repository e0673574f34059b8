"""uvicorn and its workers: binds, runs, stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, SettingError
from .limits import Limits
from .live import LiveModel

try:
    import uvicorn
    from fastapi import FastAPI
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    from .app import create_app
    from .metrics import SHARED
except ImportError as error:
    raise MissingExtra(error.name or "uvicorn", "serve") from error

__all__ = ["run_server"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LONGEST_HEAD = 65_536  # bytes of a request's line and headers
SETTINGS = "FIELDWISE_SERVE"
PATIENCE = 60  # seconds that a worker may not respond before it is considered dead
KEEP_ALIVE = 75  # seconds; longer than proxies keep theirs, so that these close first


class Patient(HttpToolsProtocol):
    """uvicorn's protocol that also closes connections whose headers take too long or never end, and
    those whose client does not read the answer."""

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._size = 0  # bytes since the last useful ones
        self._is_head = True  # the headers of a request are still to come
        self._was_of_use = False
        self._head_clock: asyncio.TimerHandle | None = None  # until headers must be complete
        self._end_clock: asyncio.TimerHandle | None = None  # until an answer must be read
        self._answered: Any = None  # the request at work; with pipelining not the last received

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_head_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_clock()
        self._stop_end_clock()
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._was_of_use = False
        super().data_received(data)
        self._size = 0 if self._was_of_use else self._size + len(data)
        if self.transport.is_closing():
            self._start_end_clock()
        elif self._size > LONGEST_HEAD:
            self._refuse(b"431 Request Header Fields Too Large", b"the headers never end")
        elif self._head_clock is None and (
            self._is_head or (self._is_answered() and self.timeout_keep_alive_task is None)
        ):
            # Headers are incomplete; or there is no request, and uvicorn's timer has stopped.
            self._start_head_clock()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._stop_head_clock()
        self._size, self._is_head = 0, True

    def on_headers_complete(self) -> None:
        self._stop_head_clock()
        self._is_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._was_of_use = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._was_of_use = True
        super().on_message_complete()
        if self._is_answered():  # refused before its body had arrived
            self._stop_head_clock()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # which waits until all is sent
            self._start_end_clock()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_end_clock()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_end_clock()

    def timeout_keep_alive_handler(self) -> None:
        self._cut()  # a normal close would wait for a client that does not read

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _cut(self) -> None:
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        """Drop unwritten data: the client is gone, and writing would raise."""
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_head_clock(self) -> None:
        self._stop_head_clock()
        self._head_clock = self.loop.call_later(
            self._limits.header_seconds,
            self._refuse,
            b"408 Request Timeout",
            b"the headers took too long",
        )

    def _stop_head_clock(self) -> None:
        if self._head_clock is not None:
            self._head_clock.cancel()
            self._head_clock = None

    def _start_end_clock(self) -> None:
        """From now on the client must read what it is sent, or the connection is cut."""
        if self._end_clock is None:
            self._end_clock = self.loop.call_later(self._limits.seconds, self._cut)

    def _stop_end_clock(self) -> None:
        if self._end_clock is not None:
            self._end_clock.cancel()
            self._end_clock = None

    def send_400_response(self, msg: str) -> None:
        """uvicorn's hook for an invalid request."""
        self._refuse(b"400 Bad Request", msg.encode())

    def _refuse(self, status: bytes, why: bytes) -> None:
        self._stop_head_clock()
        if self.transport.is_closing():
            return
        body = b'{"error":"' + why + b'"}'
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"x-content-type-options: nosniff\r\ncache-control: no-store\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        self.transport.close()
        self._start_end_clock()


def run_server(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    limits: Limits | None = None,
    poll: float = 1.0,
    access_log: bool = False,
) -> None:
    """Serve a model until told to stop. The token, if any, is the environment's FIELDWISE_TOKEN."""
    if workers < 1:
        raise SettingError(f"workers={workers} must be at least 1")
    if not poll > 0:
        raise SettingError(f"poll={poll} must be more than 0")
    limits = limits or Limits()
    _check_address(host, port)
    with tempfile.TemporaryDirectory(prefix="fieldwise-serve-") as spool, _ending():
        live = LiveModel(model, spool)
        live.load()  # a broken model is an error here, not in a worker
        options: dict[str, Any] = {
            "host": host,
            "port": port,
            "factory": True,
            "http": partial(Patient, limits=limits),
            "ws": "none",
            "access_log": access_log,
            "proxy_headers": False,
            "server_header": False,
            "timeout_keep_alive": KEEP_ALIVE,
            "timeout_graceful_shutdown": int(limits.seconds) + 1,
        }
        if workers == 1:
            uvicorn.run(partial(create_app, live, limits=limits, poll=poll), **options)
            return
        shared = Path(spool) / ".metrics"
        shared.mkdir()
        said = {"model": str(model), "limits": asdict(limits), "poll": poll, "spool": spool}
        with _environment({SHARED: str(shared), SETTINGS: json.dumps(said)}):
            uvicorn.run(
                "fieldwise.serve.run:worker_app",
                workers=workers,
                timeout_worker_healthcheck=PATIENCE,
                **options,
            )


def worker_app() -> FastAPI:
    """A worker's application, with settings from the process that starts it."""
    said = json.loads(os.environ[SETTINGS])
    return create_app(said.pop("model"), limits=Limits(**said.pop("limits")), **said)


def _check_address(host: str, port: int) -> None:
    """Raise if the address cannot be bound, before anything is loaded."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except (OSError, OverflowError) as error:
            raise SettingError(
                f"cannot listen on {host}, port {port}: {error}; choose another with --port or "
                "--host"
            ) from error


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, for processes started in this context."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


@contextmanager
def _ending() -> Iterator[None]:
    """Let a signal end the server cleanly; uvicorn raises it again when done."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
