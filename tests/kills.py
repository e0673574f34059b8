"""Commands that are killed: at moments drawn by chance, and before steps that change files.

A process that has imported everything is forked for each command, so that hundreds of kills take
minutes. Threads do not survive a fork; none of polars, Numba or torch is running by then.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise import FieldwiseModel, Store
from workers import free_port

__all__ = ["CASES", "Case", "Killing", "Tally", "warm"]

# Imports everything, then for each line of standard input forks a child for every environment
# given and, once all have ended, says how.
WARM = """
import json, os, signal, sys, time
import fieldwise.cli
import fieldwise.compress, fieldwise.data.encoding, fieldwise.distributed.run
import fieldwise.crosses.evidence, fieldwise.crossing, fieldwise.export.onnx
import fieldwise.export.python, fieldwise.export.sql, fieldwise.predicting, fieldwise.report
import fieldwise.updating
import lightgbm, numpy, torch.distributed
from fieldwise.data.shuffle import Rows
from fieldwise.layout import Layout
from fieldwise.problem import Problem
from fieldwise.train import TrainSettings, train

# Loads the kernels, without polars.
drawn = numpy.random.default_rng(0).integers(0, 2, (64, 3))
parts = [Rows(codes=drawn[:, :2].astype("i4"), target=drawn[:, 2].astype(float)) for _ in range(2)]
train(
    Problem(layout=Layout.of((2, 2), rank=2), rows=parts[0], counts=numpy.full(4, 32),
            validation=parts[1]),
    TrainSettings(epochs=1, learning_rate=0.1),
)

WRITES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")
ACCESS = os.O_WRONLY | os.O_RDWR

def counted(before, told):
    # The number of steps that change files; the process dies before one of them.
    steps = [0]
    def hook(event, about):
        if event in WRITES or (event == "open" and isinstance(about[2], int) and about[2] & ACCESS):
            steps[0] += 1
            if steps[0] == before:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    if told:
        import atexit
        atexit.register(lambda: open(told, "w").write(str(steps[0])))

def child(given, environment):
    said = os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, handle in ((0, null), (1, said), (2, said)):
        os.dup2(handle, number)
    os.chdir(given["folder"])
    os.environ.update(environment)
    sys.argv = ["fieldwise", *given["arguments"]]
    counted(given["before"], given["told"])
    code = 1
    try:
        fieldwise.cli.main()
    except SystemExit as error:
        code = error.code or 0
    finally:
        import atexit
        sys.stdout.flush(), sys.stderr.flush()
        if given["told"]:
            atexit._run_exitfuncs()
        os._exit(code if isinstance(code, int) else 1)

def ends_of(children):
    # Where one was killed a launcher soon ends the others.
    ends, deadline = {}, None
    while len(ends) < len(children):
        for pid in children:
            if pid not in ends and (found := os.waitpid(pid, os.WNOHANG))[0]:
                ends[pid] = os.waitstatus_to_exitcode(found[1])
                deadline = deadline or time.monotonic() + 5
            elif pid not in ends and -9 in ends.values() and time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return [ends[pid] for pid in children]

print("ready", flush=True)
for line in sys.stdin:
    given = json.loads(line)
    children = []
    for environment in given["environments"]:
        pid = os.fork()
        if not pid:
            child(given, environment)
        children.append(pid)
    if given["after"] is not None:
        time.sleep(given["after"])
        for k in given["victims"]:
            os.kill(children[k], signal.SIGKILL)  # not waited for, so it is no other process
    print(json.dumps(ends_of(children)), flush=True)
"""

CLOCKS = ("seconds", "rows_per_second", "checksum", "compressed_rows_per_second")


class Runner:
    """Runs commands, in forks of a process that is warm or in new ones."""

    def __init__(self) -> None:
        self._warm = subprocess.Popen(
            [sys.executable, "-c", WARM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._read()

    def _read(self) -> str:
        assert self._warm.stdout is not None
        return self._warm.stdout.readline()

    def close(self) -> None:
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.close()
        self._warm.wait(60)
        self._warm.stdout.close()

    def forked(
        self,
        folder: Path,
        arguments: list[str],
        *,
        workers: int = 1,
        after: float | None = None,
        before: int = 0,
        victims: list[int] | None = None,
        told: Path | None = None,
    ) -> list[int]:
        """How the processes of a command ended; killed `after` so many seconds or `before` a step
        that changes files, the `victims` among them or all."""
        assert self._warm.stdin is not None
        given = {
            "folder": str(folder), "log": str(log_of(folder)), "arguments": arguments,
            "environments": [{}] if workers == 1 else worker_environments(workers),
            "before": before, "told": told and str(told), "after": after,
            "victims": list(range(workers)) if victims is None else victims,
        }  # fmt: skip
        self._warm.stdin.write(json.dumps(given) + "\n")
        self._warm.stdin.flush()
        ends: list[int] = json.loads(self._read())
        return ends

    def fresh(self, folder: Path, arguments: list[str], *, after: float | None = None) -> list[int]:
        """The same of one new process."""
        with log_of(folder).open("a") as log:
            command = [sys.executable, "-m", "fieldwise", *arguments]
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        if after is not None:
            time.sleep(after)
            process.kill()
        return [process.wait()]


def worker_environments(n: int) -> list[dict[str, str]]:
    """What a launcher sets for each of n workers."""
    same = {"WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_PORT": free_port()}
    own = [{"RANK": k, "LOCAL_RANK": k, "MASTER_ADDR": "127.0.0.1"} for k in range(n)]
    return [{name: str(value) for name, value in (same | one).items()} for one in own]


@contextmanager
def warm() -> Iterator[Runner]:
    runner = Runner()
    try:
        yield runner
    finally:
        runner.close()


def log_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


# What there is on the disk ------------------------------------------------------------------------


def table(n: int, seed: int) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    user, site = draw.zipf(1.3, n) % 400, draw.integers(0, 30, n)
    z = np.sin(user) + np.cos(site * user) + draw.normal(size=n)
    return pl.DataFrame(
        {
            "user": [f"u{v}" for v in user],
            "site": [f"s{v}" for v in site],
            "price": draw.normal(size=n).round(3),
            "late": (z > 0).astype(int),
        }
    )


def of_store(path: Path) -> Any:
    """Everything a store holds, but for the numbers in the names of its files."""
    if not (path / "header.json").exists():
        return None
    store = Store(path)
    store.verify()
    rows = {k: v.tobytes() for k, v in store.read(0, store.n_rows).items()}
    counts = [c.tolist() for c in store.counts()]
    return (store.schema.to_dict(), rows, store.vocabulary_bytes(), counts)


def of_model(path: Path) -> Any:
    """The files of a model, the header without clocks. A folder that is no model is half of one."""
    if not path.exists():
        return None
    FieldwiseModel.load(path)  # or an error
    found: dict[str, Any] = {
        file.name: file.read_bytes() for file in path.iterdir() if file.name != "model.json"
    }
    return {**found, "model.json": timeless(json.loads((path / "model.json").read_text()))}


def timeless(body: Any) -> Any:
    if isinstance(body, dict):
        return {k: timeless(v) for k, v in body.items() if k not in CLOCKS}
    return [timeless(v) for v in body] if isinstance(body, list) else body


def of_file(path: Path) -> Any:
    return path.read_bytes() if path.exists() else None


def of_versions(path: Path) -> Any:
    """The model; all versions of it have to be whole."""
    kept = path.with_name(f"{path.name}.versions")
    for version in kept.glob("[0-9]*") if kept.is_dir() else ():
        FieldwiseModel.load(version)
    return of_model(path)


READERS = {"store": of_store, "model": of_model, "file": of_file, "versions": of_versions}


# What is killed -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A command, run in a folder that has been made ready for it; its output and what that is.

    `again` takes it up after a kill. Once its output is new it `may_repeat`, to the same end, or
    refuses, or would do more.
    """

    name: str
    command: str
    out: str
    kind: str
    ready: tuple[str, ...] = ()  # commands before
    more: str = ""  # added to the command that takes it up
    may_repeat: bool = False
    workers: int = 1


TRAIN = "train t.csv --target late --out m --epochs 3 --batch-size 128 --rank 4 --quiet"
ENCODE = "encode t.csv --target late --out s --quiet"
OTHER = "encode u.csv --target late --out s --quiet"
CASES = [
    Case("encode", ENCODE, "s", "store"),
    Case("encode --overwrite", f"{ENCODE} --overwrite", "s", "store", (OTHER,), "", True),
    Case("encode --append", "encode t.csv --out s --append --quiet", "s", "store", (OTHER,)),
    Case("train", TRAIN, "m", "model", (), "--resume", True),
    Case(
        "train --overwrite", f"{TRAIN} --overwrite --seed 1", "m", "model", (TRAIN,), "--resume",
        True,
    ),
    Case(
        "train --preset best",
        "train u.csv --target late --out m --preset best --cross user,site --epochs 1 --quiet",
        "m", "model", (), "--resume", True,
    ),
    Case("train, 2 workers", TRAIN, "m", "model", (), "--resume", True, 2),
    Case("update", "update m u.csv --quiet", "m", "versions", (TRAIN,)),
    Case("rollback", "rollback m", "m", "versions", (TRAIN, "update m u.csv --quiet")),
    Case("compress", "compress m --validation u.csv --out c --quiet", "c", "model", (TRAIN,)),
    Case("predict", "predict m u.csv --out p.parquet", "p.parquet", "file", (TRAIN,), "", True),
    Case(
        "predict over a file", "predict m u.csv --out p.csv", "p.csv", "file",
        (TRAIN, "predict m t.csv --out p.csv"), "", True,
    ),
    Case("explain", "explain m u.csv --out r.html", "r.html", "file", (TRAIN,), "", True),
    Case("export --to onnx", "export m --to onnx --out e", "e", "file", (TRAIN,), "", True),
    Case("export --to sql", "export m --to sql --out e", "e", "file", (TRAIN,), "", True),
    Case("export --to python", "export m --to python --out e", "e", "file", (TRAIN,), "", True),
]  # fmt: skip


@dataclass
class Tally:
    """What came of the kills of a command."""

    kills: int = 0
    by_clock: int = 0
    before_a_step: int = 0
    of_fresh_processes: int = 0
    too_late: int = 0  # it had ended; not among the kills
    nothing_there: int = 0
    old_there: int = 0
    new_there: int = 0
    taken_up: int = 0
    refused: int = 0
    equal: int = 0
    steps: int = 0
    seconds: float = 0.0
    half_written: list[str] = field(default_factory=list)
    not_taken_up: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [*self.half_written, *self.not_taken_up, *self.unlike, *self.left_over]


class Killing:
    """Kills of one command, in folders made ready from one that is copied."""

    def __init__(self, case: Case, runner: Runner, folder: Path, seed: int) -> None:
        self.case, self.runner, self.tally = case, runner, Tally()
        self._ready, self._work = folder / "ready", folder / "work"
        self._random = np.random.default_rng(seed)
        self._command, self._again = case.command.split(), f"{case.command} {case.more}".split()
        self._ready.mkdir(parents=True)
        table(2000, 0).write_csv(self._ready / "t.csv")
        table(800, 1).write_csv(self._ready / "u.csv")
        for line in case.ready:
            self._whole(runner.forked(self._ready, line.split()), self._ready)
        self.old = self._read(self._ready)
        shutil.copytree(self._ready, self._work)
        told, begun = folder / "steps", time.perf_counter()
        about: Any = {"workers": case.workers, "told": told}
        self._whole(runner.forked(self._work, self._command, **about), self._work)
        self.tally.seconds = time.perf_counter() - begun
        self.tally.steps = int(told.read_text())
        self.new, self._names = self._read(self._work), names(self._work)
        assert self.new is not None
        assert self.new != self.old

    def _whole(self, ends: list[int], folder: Path) -> None:
        assert not any(ends), log_of(folder).read_text()[-2000:]

    def _read(self, folder: Path) -> Any:
        return READERS[self.case.kind](folder / self.case.out)

    def run(self, wanted: int, *, fresh: bool = False, until: float = np.inf) -> None:
        """So many kills: some of a run killed several times before it comes to an end."""
        target = self.tally.kills + wanted
        while self.tally.kills < target and time.perf_counter() < until:
            shutil.rmtree(self._work)
            shutil.copytree(self._ready, self._work)
            log_of(self._work).write_text("")
            command, state = self._command, "old"
            while self.tally.kills < target and state == "old":
                self._kill(command, fresh=fresh)
                state = self._state()
                command = self._again
                if self._random.random() < 0.3:
                    break
            self._end(state)

    def _kill(self, command: list[str], *, fresh: bool) -> None:
        tally, case, random = self.tally, self.case, self._random
        workers = case.workers
        if fresh:
            ends = self.runner.fresh(
                self._work, command, after=random.uniform(0, 2 * tally.seconds)
            )
        elif random.random() < 0.5:
            victims = None if random.random() < 0.5 else [int(random.integers(workers))]
            after = random.uniform(0, tally.seconds)
            about: Any = {"workers": workers, "after": after, "victims": victims}
            ends = self.runner.forked(self._work, command, **about)
            tally.by_clock += -signal.SIGKILL in ends
        else:
            before = int(random.integers(1, tally.steps + 1))
            ends = self.runner.forked(self._work, command, workers=workers, before=before)
            tally.before_a_step += -signal.SIGKILL in ends
        was_killed = -signal.SIGKILL in ends
        tally.kills += was_killed
        tally.of_fresh_processes += was_killed and fresh
        tally.too_late += not was_killed

    def _state(self) -> str:
        try:
            found = self._read(self._work)
        except Exception as error:
            self.tally.half_written.append(f"{self.case.name}: {error}")
            return "half"
        if found == self.new:
            self.tally.new_there += 1
            return "new"
        if found == self.old:
            self.tally.old_there += found is not None
            self.tally.nothing_there += found is None
            return "old"
        self.tally.half_written.append(f"{self.case.name}: neither what was there nor the new")
        return "half"

    def _end(self, state: str) -> None:
        """Taken up, it ends as if nothing had happened."""
        tally, case = self.tally, self.case
        if state == "half" or (state == "new" and not case.may_repeat):
            return
        ends = self.runner.forked(self._work, self._again, workers=case.workers)
        said = log_of(self._work).read_text()[-1500:]
        if state == "new" and "is there already" in said:
            tally.refused += 1  # nothing was left to do
        elif any(ends):
            tally.not_taken_up.append(f"{case.name}: {ends} {said}")
            return
        else:
            tally.taken_up += 1
        if self._read(self._work) != self.new:
            tally.unlike.append(f"{case.name}: {said}")
            return
        tally.equal += 1  # of those taken up and those refused
        left = names(self._work) - self._names
        if left:
            tally.left_over.append(f"{case.name}: {sorted(left)}")


def names(folder: Path) -> set[str]:
    """Of all files, but for the numbers in those of a store."""
    found = Counter(str(p.relative_to(folder)) for p in folder.rglob("*"))
    return {name.rsplit("-", 1)[0] if "s/" in name[:2] else name for name in found}
