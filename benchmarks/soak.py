"""A server under mixed load for an hour: good clients among bad ones, models swapped and broken,
workers killed, memory watched.

    make bench-load                         # an hour
    python -m benchmarks.soak 5             # minutes

Writes benchmarks/results/load.json. Good clients compare every answer, byte by byte, with what a
quiet server said of either version of the model. Server and clients share the machine, and run with
low priority: times are of a machine that does other work.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from benchmarks.clients import BAD, Call, Mischief, Server, calls_of
from benchmarks.load import Connection
from benchmarks.record import save
from fieldwise import FieldwiseClassifier, FieldwiseModel, load_flights
from fieldwise.model_folder import model_id

TOKEN = "a token of the soak"
N_GOOD, N_BAD = 16, 6
PRIORITY = 5  # below that of who works on the machine
KILLED = 1.0  # seconds around a kill in which a connection may break


class Plan(NamedTuple):
    """How long, how fast and how often, in seconds."""

    seconds: float
    rate: float = 100.0  # good requests a second
    swap: float = 60.0
    age: float = 54.0  # after a swap an answer may be of the model before
    breaks: int = 4  # every so many swaps the folder is broken first
    notice: float = 10.0  # at most, until a broken folder is noticed
    kill: float = 420.0
    sample: float = 15.0
    timeout: float = 20.0
    header_timeout: float = 5.0


class Soak:
    """Everything that happens to a server, and what was seen of it."""

    def __init__(
        self,
        server: Server,
        pid: int,
        folder: Path,
        log: Path,
        versions: dict[str, Path],
        plan: Plan,
    ) -> None:
        self._server, self._pid, self._folder, self._plan = server, pid, folder, plan
        self._log = log
        self._versions = versions  # by id; the first is what is served at first
        self._known: dict[str, list[bytes]] = {}
        self._calls: list[Call] = []
        self._begun = time.monotonic()
        self._end = self._begun + plan.seconds
        self._put = [(self._begun, self._begun, next(iter(versions)))]
        self.kills: list[float] = []
        self.good: Counter[str] = Counter()
        self.bad: dict[str, Counter[int]] = defaultdict(Counter)
        self.wrong: list[str] = []
        self.taken: list[float] = []
        self.lags: dict[int, float] = {}
        self.ways: Counter[str] = Counter()
        self.samples: dict[int, list[tuple[float, float, float]]] = defaultdict(list)

    # Before: what a quiet server says of every version ------------------------------------------

    async def learn(self, calls: list[Call], rows: list[dict[str, Any]]) -> None:
        self._calls = calls
        for id, path in self._versions.items():
            _replace(path, self._folder)
            await self._until(id)
            self._known[id] = [await self._asked(call) for call in calls]
            model = FieldwiseModel.load(path)
            many = next(k for k, call in enumerate(calls) if call.name == "many rows")
            found = json.loads(self._known[id][many])["predictions"]
            z = model.decision_function(pl.DataFrame(rows))
            np.testing.assert_allclose([f["score"] for f in found], z, rtol=1e-5, atol=1e-6)
        first = next(iter(self._versions))
        _replace(self._versions[first], self._folder)
        await self._until(first)
        self._begun = time.monotonic()
        self._end = self._begun + self._plan.seconds
        self._put = [(self._begun, self._begun, first)]

    async def _asked(self, call: Call) -> bytes:
        status = 408
        while status == 408:  # what is compiled for the first time may take longer
            connection = await self._connected()
            status = await connection.ask(call.request)
            connection.close()
        assert status == 200, (call, status, connection.body)
        return connection.body

    async def _until(self, id: str) -> None:
        """All workers serve it."""
        ready = next(call for call in self._calls if call.name == "/ready")
        n = 0
        while n < 30:
            n = n + 1 if json.loads(await self._asked(ready))["model"] == id else 0
            await asyncio.sleep(0.02)

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Connection, "127.0.0.1", self._server.port))[1]

    # Clients ------------------------------------------------------------------------------------

    async def run(self) -> None:
        work = [self._ask(k) for k in range(N_GOOD)]
        work += [self._annoy(k) for k in range(N_BAD)]
        await asyncio.gather(self._swap(), self._kill(), self._watch(), *work)

    async def _ask(self, k: int) -> None:
        """One good client; the first never keeps its connection."""
        weights, every = [call.weight for call in self._calls], N_GOOD / self._plan.rate
        connection, due = await self._connected(), time.monotonic() + random.random() * every
        again: int | None = None
        while (now := time.monotonic()) < self._end:
            if now < due:
                await asyncio.sleep(due - now)
            due = max(due + every, time.monotonic())
            if k == 0 or not connection.is_open:
                connection.close()
                connection = await self._connected()
            n = random.choices(range(len(self._calls)), weights)[0] if again is None else again
            begun = time.monotonic()
            try:
                status = await asyncio.wait_for(connection.ask(self._calls[n].request), 60)
            except TimeoutError:
                self.wrong.append(f"{self._calls[n].name}: no answer within a minute")
                connection.close()
                continue
            again = n if self._seen(n, status, connection.body, begun) == "cut by a kill" else None
        connection.close()

    def _seen(self, n: int, status: int, body: bytes, begun: float) -> str:
        call, now = self._calls[n], time.monotonic()
        what = call.name
        if status == 0 and self._is_of_a_kill(begun, now):
            what = "cut by a kill"
        elif status != 200:
            self._is_wrong(f"{call.name}: {status} {body[:300]!r}")
        elif call.is_known:
            ids = [id for id, known in self._known.items() if known[n] == body]
            if not ids:
                self._is_wrong(f"{call.name}: an answer of no version: {body[:300]!r}")
            if len(ids) == 1:
                self._check_age(call.name, ids[0], begun)
        if call.name == "one row":
            self.taken.append(now - begun)
        self.good[what] += 1
        return what

    def _check_age(self, name: str, id: str, begun: float) -> None:
        """An answer may be of the version before for as long as it takes to load one."""
        _, done, new = self._put[-1]
        before = self._put[-2][2] if len(self._put) > 1 else new
        if id == new:
            return
        lag = begun - done
        self.lags[len(self._put)] = max(self.lags.get(len(self._put), 0.0), lag)
        if id != before or lag > self._plan.age:
            self._is_wrong(f"{name}: an answer of {id}, {lag:.1f} s after {new} was put there")

    def _is_of_a_kill(self, begun: float, ended: float) -> bool:
        return any(begun - KILLED <= t <= ended for t in self.kills)

    def _is_wrong(self, what: str) -> None:
        if len(self.wrong) < 100:
            self.wrong.append(f"{time.monotonic() - self._begun:.1f} s: {what}")

    async def _annoy(self, k: int) -> None:
        """Bad clients, one after the other, each kind in its turn."""
        row = next(call.request for call in self._calls if call.name == "one row")
        longest = 3 * (self._plan.timeout + self._plan.header_timeout) + 20
        order: list[Mischief] = []
        while time.monotonic() < self._end:
            if not order:
                order = random.sample(list(BAD), len(BAD))
            mischief, begun = order.pop(), time.monotonic()
            left = self._end - begun  # some would wait for their time to be over
            name = mischief.__name__.replace("_", " ")
            try:
                status = await asyncio.wait_for(mischief(self._server, row), min(longest, left))
            except TimeoutError:
                if left > longest:
                    self._is_wrong(f"{name} was still held after {longest:.0f} s")
                continue
            except OSError:
                status = 0
            if status not in BAD[mischief] and not (
                status == 0 and self._is_of_a_kill(begun, time.monotonic())
            ):
                self._is_wrong(f"{name} was told {status}")
            self.bad[name][status] += 1
            await asyncio.sleep(random.random() * 0.2)

    # What happens to the server -----------------------------------------------------------------

    async def _swap(self) -> None:
        ids, n, wait = list(self._versions), 0, self._plan.swap / 4
        while await self._slept(wait):
            n, wait = n + 1, self._plan.swap
            if n % self._plan.breaks == 0:
                broken = BROKEN[n // self._plan.breaks % len(BROKEN)]
                await asyncio.to_thread(broken, self._folder)
                self.ways[broken.__name__.strip("_").replace("_", " ")] += 1
                await self._noticed()
            way = (_saved, _replace, _copied)[n % 3]
            id, begun = ids[n % len(ids)], time.monotonic()
            # From now on the new one may be served, and the old one still is.
            self._put.append((begun, float("inf"), id))
            await asyncio.to_thread(way, self._versions[id], self._folder)
            self._put[-1] = (begun, time.monotonic(), id)
            self.ways[way.__name__.strip("_")] += 1

    async def _noticed(self) -> None:
        """A broken folder stays until a worker has refused it, and a while."""
        before, begun = refusals_in(self._log), time.monotonic()
        while time.monotonic() < begun + self._plan.notice and refusals_in(self._log) == before:
            await asyncio.sleep(0.1)
        await asyncio.sleep(self._plan.swap / 10)

    async def _kill(self) -> None:
        """The worker that is the youngest, but once the oldest, so that one lives through the
        second half and its memory can be followed."""
        oldest = False
        while await self._slept(self._plan.kill):
            workers = workers_of(self._pid)
            if len(workers) < 2:
                continue
            half = self._begun + self._plan.seconds * 0.35
            is_time = not oldest and time.monotonic() > half
            oldest = oldest or is_time
            self.kills.append(time.monotonic())
            os.kill(workers[0 if is_time else -1], signal.SIGKILL)

    async def _watch(self) -> None:
        while await self._slept(self._plan.sample):
            for pid in (self._pid, *workers_of(self._pid)):
                if found := memory_of(pid):
                    minutes = (time.monotonic() - self._begun) / 60
                    self.samples[pid].append((minutes, *found))
            n = self.good.total(), len(self.wrong), len(self._put) - 1, len(self.kills)
            print(f"{n[0]} good, {n[1]} wrong, {n[2]} swaps, {n[3]} kills", flush=True)

    async def _slept(self, seconds: float) -> bool:
        """Whether it is not over yet."""
        await asyncio.sleep(max(min(seconds, self._end - time.monotonic()), 0))
        return time.monotonic() < self._end

    def figures(self) -> dict[str, Any]:
        p50, p99, p999 = 1e3 * np.quantile(self.taken, [0.5, 0.99, 0.999])
        return {
            "minutes": self._plan.seconds / 60,
            "good_requests": self.good.total(),
            "good_by_kind": dict(self.good),
            "good_requests_per_second": self.good.total() / self._plan.seconds,
            "wrong": self.wrong,
            "one_row_milliseconds": {
                "median": p50,
                "p99": p99,
                "p999": p999,
                "longest": 1e3 * max(self.taken),
            },
            "bad_clients": sum(own.total() for own in self.bad.values()),
            "bad_by_kind": {
                name: {str(status): n for status, n in sorted(self.bad[name].items())}
                for name in sorted(self.bad)
            },
            "swaps": len(self._put) - 1,
            "put_there": dict(self.ways),
            "longest_seconds_to_the_new_model": max(self.lags.values(), default=0.0),
            "kills": len(self.kills),
            "memory": [_growth(pid, series) for pid, series in self.samples.items()],
        }


# Folders ------------------------------------------------------------------------------------------


def _saved(version: Path, folder: Path) -> None:
    FieldwiseModel.load(version).save(folder, overwrite=True)


def _replace(version: Path, folder: Path) -> None:
    """As `rm -r` and `mv` do: for a moment there is nothing."""
    new = folder.with_name("new")
    shutil.copytree(version, new)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def _copied(version: Path, folder: Path) -> None:
    """As a slow `cp` does: file by file, over what is there."""
    folder.mkdir(exist_ok=True)
    for file in sorted(version.iterdir()):
        with (folder / file.name).open("wb") as out:
            content = file.read_bytes()
            for k in range(0, len(content), len(content) // 4 + 1):
                out.write(content[k : k + len(content) // 4 + 1])
                out.flush()
                time.sleep(0.02)


def _a_header_of_zeros(folder: Path) -> None:
    (folder / "model.json").write_bytes(b"\0" * 1000)


def _a_table_cut_short(folder: Path) -> None:
    os.truncate(folder / "table.safetensors", 100)


def _other_bytes(folder: Path) -> None:
    for file in folder.iterdir():
        file.write_bytes(os.urandom(5000))


def _no_vocabulary(folder: Path) -> None:
    (folder / "vocabulary.parquet").unlink(missing_ok=True)


def _no_folder(folder: Path) -> None:
    shutil.rmtree(folder)


BROKEN = (_a_header_of_zeros, _a_table_cut_short, _other_bytes, _no_vocabulary, _no_folder)


def refusals_in(log: Path) -> int:
    return log.read_bytes().count(b"a model is refused")


# Processes ----------------------------------------------------------------------------------------


def workers_of(pid: int) -> list[int]:
    """The oldest first."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append((_started(int(child)), int(child)))
        except OSError:
            continue
    return [child for _, child in sorted(found)]


def _started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def memory_of(pid: int) -> tuple[float, float] | None:
    """Megabytes that are there, and those of them that are no file's."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    about = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in about:
        return None
    return tuple(int(about[name].split()[0]) / 1e3 for name in ("VmRSS", "RssAnon"))


def _growth(pid: int, series: list[tuple[float, float, float]]) -> dict[str, Any]:
    """The series, thinned, and the slope over its second half."""
    minutes, resident, anonymous = np.array(series).T
    half = minutes >= (minutes[0] + minutes[-1]) / 2
    out: dict[str, Any] = {
        "process": pid,
        "from_minute": minutes[0],
        "to_minute": minutes[-1],
        "resident_mb": _line(resident),
        "anonymous_mb": _line(anonymous),
    }
    if half.sum() > 10:
        for name, values in (("resident", resident), ("anonymous", anonymous)):
            slope, error = fitted_slope(minutes[half], values[half])
            out[f"{name}_mb_per_hour"] = [60 * slope, 60 * error]
    return out


def _line(values: np.ndarray) -> str:
    """Forty values of a series at most, in one line of the file."""
    return " ".join(f"{v:.1f}" for v in values[:: len(values) // 40 + 1])


def fitted_slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Least squares, and the standard error of the slope."""
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))


@contextmanager
def served(folder: Path, plan: Plan, log: Path) -> Iterator[tuple[Server, int]]:
    """`fieldwise serve` with two workers, once it answers; its copies are beside the log."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    options = {
        "--port": port,
        "--workers": 2,
        "--poll": min(1.0, plan.swap / 10),
        "--timeout": plan.timeout,
        "--header-timeout": plan.header_timeout,
        "--max-body": 0.5,
    }
    said = [str(word) for pair in options.items() for word in pair]
    environment = {**os.environ, "FIELDWISE_TOKEN": TOKEN, "TMPDIR": str(log.parent)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fieldwise", "serve", str(folder), *said],
            stdout=out,
            stderr=out,
            env=environment,
        )
        try:
            while not _is_listening(port):
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            server = Server(port, TOKEN, plan.timeout, plan.header_timeout, 500_000)
            yield server, process.pid
        finally:
            process.terminate()
            process.wait(60)


def _is_listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def soak(
    versions: list[Path], rows: list[dict[str, Any]], over: str, plan: Plan, workplace: Path
) -> dict[str, Any]:
    """The figures of models in folders, asked with rows that fit them, in an empty folder."""
    folder, log = workplace / "served", workplace / "log"
    by_id = {model_id(path): path for path in versions}
    assert len(by_id) == len(versions), "versions are the same"
    _replace(versions[0], folder)
    with served(folder, plan, log) as (server, pid):
        found = Soak(server, pid, folder, log, by_id, plan)

        async def whole() -> None:
            await found.learn(calls_of(rows, over, TOKEN), rows)
            await found.run()

        asyncio.run(whole())
        copies = [copy.name for copy in workplace.glob("fieldwise-serve-*/*")]
    lines = log.read_text(errors="replace").splitlines()
    return {
        **found.figures(),
        "copies_kept": len([name for name in copies if name in by_id]),
        "refusals_logged": refusals_in(log),
        "tracebacks_logged": sum("Traceback" in line for line in lines),
        "failures_logged": [line for line in lines if "failed" in line or "Error:" in line][:20],
    }


def models(place: Path) -> list[Path]:
    """Two, of different flights and kinds."""
    flights, out = load_flights().sample(12_000, seed=0), []
    for preset, part in (("best", flights[:6000]), ("fast", flights[6000:])):
        estimator = FieldwiseClassifier(preset=preset)
        model = estimator.fit(part.drop("late"), part["late"]).model_
        out.append(model.save(place / preset))
    return out


def main(minutes: float, place: Path, versions: list[Path]) -> None:
    priority = os.nice(PRIORITY)
    rows = load_flights().sample(20, seed=1).drop("late").to_dicts()
    plan = Plan(60 * minutes)
    found = soak(versions, rows, "dest", plan, place)
    print(json.dumps({k: v for k, v in found.items() if k != "memory"}, indent=1))
    note = f"server and clients at nice {priority}, beside other work"
    figures = {"took_place": note, **plan._asdict(), **found}
    print(f"written: {save('load', f'make bench-load MINUTES={minutes:g}', figures)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as own:
        asked = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
        main(asked, Path(own), models(Path(own)))
