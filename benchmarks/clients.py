"""Who asks a server in a soak: good clients, who know the right answers, and bad ones, each with
the statuses it should be told (0: the connection is closed)."""

from __future__ import annotations

import asyncio
import io
import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import polars as pl

STREAM = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
JSON = "application/json"


class Call(NamedTuple):
    """A good request. Its answer is known to the byte, unless it tells of the server."""

    name: str
    request: bytes
    weight: int = 1
    is_known: bool = True


class Server(NamedTuple):
    """What a client knows of a server."""

    port: int
    token: str
    seconds: float  # limits
    header_seconds: float
    max_body: int


def http(
    method: str, path: str, body: bytes = b"", kind: str = JSON, token: str = "", length: Any = None
) -> bytes:
    length = len(body) if length is None else length
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
    about = f"content-type: {kind}\r\ncontent-length: {length}\r\n" if body or length else ""
    return f"{head}{about}\r\n".encode() + body


def calls_of(rows: list[dict[str, Any]], over: str, token: str) -> list[Call]:
    """Every endpoint, mostly one row; `over` is a field to rank."""
    frame, stream, parquet = pl.DataFrame(rows), io.BytesIO(), io.BytesIO()
    frame.write_ipc_stream(stream)
    frame.write_parquet(parquet)

    def get(path: str, **more: Any) -> Call:
        return Call(path.partition("?")[0], http("GET", path, token=token), **more)

    def post(name: str, path: str, given: Any, weight: int, kind: str = JSON) -> Call:
        body = given if isinstance(given, bytes) else json.dumps(given).encode()
        return Call(name, http("POST", path, body, kind, token), weight)

    context = {name: value for name, value in rows[0].items() if name != over}
    return [
        *(post("one row", "/predict", {"rows": [row]}, 12) for row in rows[:10]),
        post("many rows", "/predict", {"rows": rows}, 10),
        post("explained", "/predict?explain=true", {"rows": rows[:3]}, 10),
        post("stream", "/predict/batch", stream.getvalue(), 8, STREAM),
        post("parquet", "/predict/batch", parquet.getvalue(), 4, PARQUET),
        post("ranking", "/rank", {"context": context, "over": over, "k": 5}, 8),
        get(f"/categories?field={over}&q=a", weight=8),
        get("/schema", weight=2),
        get("/openapi.json", weight=2),
        get("/", weight=2),
        get("/ready", weight=4),
        get("/health", weight=4, is_known=False),  # which tells when it was loaded
        get("/metrics", weight=2, is_known=False),
    ]


# Bad clients: each says what it was told ----------------------------------------------------------


@asynccontextmanager
async def opened(
    server: Server,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # closing would wait until all is sent


async def told(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, all of which is read; 0 where the connection is closed."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        await reader.readexactly(length)
    except (OSError, asyncio.IncompleteReadError):
        return 0
    return int(head[9:12])


async def sent(server: Server, *pieces: bytes, pause: float = 0.0) -> int:
    """Pieces, with pauses, and what is told."""
    async with opened(server) as (reader, writer):
        with suppress(OSError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
            return await told(reader)
    return 0


async def gone(server: Server, request: bytes, wait: float) -> int:
    """Send and leave without a word."""
    async with opened(server) as (_, writer):
        writer.write(request)
        await asyncio.sleep(wait)
        own: socket.socket = writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return 0


async def half_a_head(server: Server, good: bytes) -> int:
    return await sent(server, good[: random.randint(1, 60)])


async def half_a_body(server: Server, good: bytes) -> int:
    return await sent(server, good[:-10])


async def gone_in_the_body(server: Server, good: bytes) -> int:
    return await gone(server, good[:-10], random.random())


async def gone_in_the_answer(server: Server, good: bytes) -> int:
    return await gone(server, good, random.random() / 100)


async def a_slow_writer(server: Server, good: bytes) -> int:
    """Within its time."""
    pieces = [good[k : k + len(good) // 8 + 1] for k in range(0, len(good), len(good) // 8 + 1)]
    return await sent(server, *pieces, pause=min(server.seconds, server.header_seconds) / 20)


async def a_deaf_reader(server: Server, good: bytes) -> int:
    """Takes nothing of much, until it is cut off, or served late and has all of it at once."""
    async with opened(server) as (reader, writer):
        with suppress(OSError):  # TimeoutError is one
            writer.write(http("GET", "/openapi.json", token=server.token) * 1000)
            await asyncio.sleep(server.seconds + 3)
            while await asyncio.wait_for(reader.read(1 << 20), 2):
                pass
    return 0


async def a_slow_reader(server: Server, good: bytes) -> int:
    """Takes all of a little, slowly."""
    found = b""
    async with opened(server) as (reader, writer):
        writer.write(http("GET", "/openapi.json", token=server.token))
        with suppress(OSError):
            while b"\r\n\r\n" not in found:
                found += await reader.read(200)
                await asyncio.sleep(0.01)
    return int(found[9:12] or 0)


async def garbage(server: Server, good: bytes) -> int:
    return await sent(server, random.randbytes(random.randint(1, 3000)) + b"\r\n\r\n")


async def an_altered_head(server: Server, good: bytes) -> int:
    """May still be a request, of some sort."""
    altered = bytearray(good)
    for _ in range(random.randint(1, 5)):
        altered[random.randrange(good.index(b"\r\n\r\n"))] = random.randrange(256)
    return await sent(server, bytes(altered))


async def a_body_that_is_longer(server: Server, good: bytes) -> int:
    return await sent(server, http("POST", "/predict", b'{"rows": []}', JSON, server.token, 5))


async def a_length_that_is_none(server: Server, good: bytes) -> int:
    length = random.choice(["-5", "x", "5, 7", "5\r\ncontent-length: 7", "0x5", "", "9" * 40])
    more = random.choice([length, "5\r\ntransfer-encoding: chunked"])
    return await sent(server, http("POST", "/predict", b"12345", JSON, server.token, more))


async def a_length_beyond_the_limit(server: Server, good: bytes) -> int:
    length = server.max_body * random.randint(2, 10**6)
    return await sent(server, http("POST", "/predict", b"{", JSON, server.token, length))


async def an_endless_body(server: Server, good: bytes) -> int:
    head = http("POST", "/predict", token=server.token)[:-2]
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    n = server.max_body // 0x8000 + 2
    return await sent(server, head + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * n)


async def an_endless_head(server: Server, good: bytes) -> int:
    return await sent(server, b"GET / HTTP/1.1\r\n", b"x: ", *[b"y" * 10_000] * 7)


async def a_wrong_token(server: Server, good: bytes) -> int:
    token = random.choice(["", "x", server.token[:-1], server.token + "x", "\u00e9" * 9])
    return await sent(server, http("POST", "/predict", b"{}", JSON, token))


async def a_wrong_path(server: Server, good: bytes) -> int:
    path = random.choice(["/nothing", "/../etc/passwd", "/%2e%2e/x", "//", "/predict/", "/\u00e9"])
    return await sent(server, http(random.choice(["GET", "POST", "PUT"]), path, token=server.token))


WRONG: tuple[tuple[bytes, str, str], ...] = (
    (b"[" * 100_000, JSON, "/predict"),
    (b'{"rows": [' + b'{"a":' * 5000, JSON, "/predict"),
    (b'{"rows": [{"a": 1e999}]}', JSON, "/predict"),
    (b'{"rows": [{}], "more": 1}', JSON, "/predict?explain=perhaps"),
    (b'{"rows": [[]]}\xff', JSON, "/predict"),
    (b'{"context": {}, "over": "\\u0000", "k": -1}', JSON, "/rank"),
    (b"ARROW1\0\0" + b"\xff" * 500, STREAM, "/predict/batch"),
    (b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 9, STREAM, "/predict/batch"),
    (b"PAR1" + b"\xff" * 500 + b"PAR1", PARQUET, "/predict/batch"),
    (b"a,b\n1,2\n", "text/csv", "/predict/batch"),
)


async def a_wrong_body(server: Server, good: bytes) -> int:
    body, kind, path = random.choice(WRONG)
    return await sent(server, http("POST", path, body, kind, server.token))


async def a_silent_connection(server: Server, good: bytes) -> int:
    return await sent(server)


async def a_chatterer(server: Server, good: bytes) -> int:
    """Hundreds of requests over one connection, with empty lines between them."""
    status = 0
    async with opened(server) as (reader, writer):
        with suppress(OSError):
            for _ in range(200):
                writer.write(b"\r\n" + http("GET", "/ready", token=server.token))
                status = await told(reader)
                if status != 200:
                    break
    return status


async def a_pipeline(server: Server, good: bytes) -> int:
    """Forty requests at once, and then one that is none."""
    async with opened(server) as (reader, writer):
        with suppress(OSError):
            writer.write(good * 40)
            statuses = {await told(reader) for _ in range(40)}
            writer.write(b"rubbish\r\n\r\n")
            return await told(reader) if statuses == {200} else min(statuses)
    return 0


Mischief = Callable[[Server, bytes], Awaitable[int]]
LOOSE = {0, 200, 400, 401, 404, 405, 408, 415, 422, 431}
BAD: dict[Mischief, set[int]] = {
    half_a_head: {408},
    half_a_body: {408},
    gone_in_the_body: {0},
    gone_in_the_answer: {0},
    a_slow_writer: {200},
    a_deaf_reader: {0},
    a_slow_reader: {200},
    garbage: {0, 400, 408},
    an_altered_head: LOOSE,
    a_body_that_is_longer: {400},
    a_length_that_is_none: {400},
    a_length_beyond_the_limit: {413},
    an_endless_body: {413, 0},
    an_endless_head: {431},
    a_wrong_token: {401},
    a_wrong_path: {400, 404, 405},
    a_wrong_body: {400, 415, 422},
    a_silent_connection: {408},
    a_chatterer: {200},
    a_pipeline: {400},
}
