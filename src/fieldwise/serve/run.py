"""uvicorn and its workers: binds, runs, stops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, SettingError
from .limits import Limits
from .live import LiveModel

try:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    from uvicorn.supervisors import Multiprocess

    from .app import create_app
    from .metrics import SHARED
except ImportError as error:
    raise MissingExtra(error.name or "uvicorn", "serve") from error

__all__ = ["run_server"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LONGEST_HEAD = 65_536  # bytes of a request's line and headers
KEEP_ALIVE = 75  # seconds; longer than proxies keep theirs, so that these close first


class Patient(HttpToolsProtocol):
    """uvicorn's protocol, which closes connections whose headers take too long or never end."""

    def __init__(self, *args: Any, seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seconds, self._size = seconds, 0
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wind()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._clock is not None:  # still among the headers
            self._size += len(data)
            if self._size > LONGEST_HEAD:
                self._refuse(b"431 Request Header Fields Too Large", b"the headers never end")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wind()

    def on_headers_complete(self) -> None:
        self._stop()
        super().on_headers_complete()

    def _wind(self) -> None:
        self._stop()
        self._size = 0
        self._clock = self.loop.call_later(
            self._seconds, self._refuse, b"408 Request Timeout", b"the headers took too long"
        )

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _refuse(self, status: bytes, why: bytes) -> None:
        self._stop()
        if self.transport.is_closing():
            return
        body = b'{"error":"' + why + b'"}'
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        self.transport.close()


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
    """Serve a model until told to stop. The token, where there is one, is FIELDWISE_TOKEN of the
    environment."""
    if workers < 1:
        raise SettingError(f"workers={workers} must be at least 1")
    if not poll > 0:
        raise SettingError(f"poll={poll} must be more than 0")
    limits = limits or Limits()
    bound = _bound(host, port)
    with bound, tempfile.TemporaryDirectory(prefix="fieldwise-serve-") as spool, _ending():
        live = LiveModel(model, spool)
        live.load()  # a model that is broken from the start is an error here, not in a worker
        settings: dict[str, Any] = {"limits": limits, "poll": poll, "spool": spool}
        app = partial(create_app, live if workers == 1 else str(model), **settings)
        config = uvicorn.Config(
            app,
            factory=True,
            http=partial(Patient, seconds=limits.header_seconds),  # type: ignore[arg-type]
            ws="none",
            workers=workers,
            access_log=access_log,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(limits.seconds) + 1,
        )
        server = uvicorn.Server(config)
        if workers == 1:
            server.run(sockets=[bound])
            return
        shared = Path(spool) / ".metrics"
        shared.mkdir()
        os.environ[SHARED] = str(shared)
        try:
            Multiprocess(config, target=server.run, sockets=[bound]).run()
        finally:
            del os.environ[SHARED]


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens where it is told to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        raise SettingError(
            f"cannot listen on {host}, port {port}: {error}; choose another with --port or --host"
        ) from error
    found.set_inheritable(True)
    return found


@contextmanager
def _ending() -> Iterator[None]:
    """A signal ends the server and leaves nothing behind; uvicorn sends it again when done."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
