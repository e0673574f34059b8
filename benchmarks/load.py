"""A load generator: HTTP over kept connections, as fast as one process of Python can.

    python -m benchmarks.load PORT PATH SECONDS [--bodies FILE] [--connections N | --rate R]

Without a rate every connection asks as soon as it is answered; with one, requests begin when they
are due, and their time counts from then, so that a slow answer delays no clock. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np


class Connection(asyncio.Protocol):
    """One request at a time; `ask` gives the status of its answer, 0 where the connection ends, and
    `body` is what it brought."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[int] | None = None
        self._got = self.body = b""
        self.is_open = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[int]:
        self._waiting = asyncio.get_running_loop().create_future()
        self._got = b""
        self._transport.write(request)
        return self._waiting

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        if not end or self._waiting is None:
            return
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        if len(body) >= length:
            waiting, self._waiting, self.body = self._waiting, None, body
            self.is_open = b"connection: close" not in head.lower()
            waiting.set_result(int(head[9:12]))

    def close(self) -> None:
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(0)


def requests_of(path: str, bodies: list[bytes]) -> list[bytes]:
    if not bodies:
        return [f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()]
    start = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return [f"{start}content-length: {len(b)}\r\n\r\n".encode() + b for b in bodies]


async def closed(port: int, requests: list[bytes], seconds: float, n: int) -> dict[str, Any]:
    """n connections, each with a request under way at all times."""
    loop, taken, statuses = asyncio.get_running_loop(), [], []
    end = time.perf_counter() + seconds
    every = cycle(requests)

    async def one() -> None:
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        while (begun := time.perf_counter()) < end:
            statuses.append(await connection.ask(next(every)))
            taken.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(n)))
    return found(taken, statuses, time.perf_counter() - begun)


async def paced(
    port: int, requests: list[bytes], seconds: float, rate: float, n: int
) -> dict[str, Any]:
    """`rate` requests a second over n connections."""
    loop, taken, statuses = asyncio.get_running_loop(), [], []
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(n):
        free.put_nowait((await loop.create_connection(Connection, "127.0.0.1", port))[1])
    every = cycle(requests)

    async def one(due: float) -> None:
        connection = await free.get()
        statuses.append(await connection.ask(next(every)))
        taken.append(time.perf_counter() - due)
        free.put_nowait(connection)

    begun, tasks = time.perf_counter(), []
    for k in range(int(rate * seconds)):
        due = begun + k / rate
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    return found(taken, statuses, time.perf_counter() - begun)


def found(taken: list[float], statuses: list[int], seconds: float) -> dict[str, Any]:
    p50, p99 = np.quantile(taken, [0.5, 0.99])
    return {
        "requests": len(taken),
        "failed": sum(status != 200 for status in statuses),
        "requests_per_second": len(taken) / seconds,
        "milliseconds": {"median": 1e3 * p50, "p99": 1e3 * p99, "longest": 1e3 * max(taken)},
    }


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("port", type=int)
    options.add_argument("path")
    options.add_argument("seconds", type=float)
    options.add_argument("--bodies", type=Path, help="a body a line")
    options.add_argument("--connections", type=int, default=16)
    options.add_argument("--rate", type=float)
    given = options.parse_args()
    bodies = given.bodies.read_bytes().splitlines() if given.bodies else []
    requests = requests_of(given.path, bodies)
    where = (given.port, requests, given.seconds)
    if given.rate:
        work = paced(*where, given.rate, given.connections)
    else:
        work = closed(*where, given.connections)
    print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    main()
