"""The long run: every target in a process of its own, steered by coverage, in turns.

    python -m fuzz run [--share 1.0] [--jobs 1] [--minutes 60] [--only NAME ...]
    python -m fuzz show NAME FILE        one input, with its traceback
    python -m fuzz record                benchmarks/results/fuzz.json

A run that was stopped goes on where it was. What fails is kept in `fuzz/work/findings`; what ends
the process (a segmentation fault, memory, time) in `fuzz/work/fatal`, and the search goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .targets import ALLOTTED, CORPUS, seeds, target

WORK = Path(__file__).parent / "work"
MEMORY, SECONDS = 6000, 120  # megabytes, and seconds an input, that are too many
ALIVE = 600  # seconds of one process
DEATHS = 40  # processes that ended badly, after which a target is left
KERNELS = ("_kernels", "_vectors", "_packed", "_products", "cpu", "sharded")  # Numba reads them
ENVIRONMENT = {
    "POLARS_MAX_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "RUST_BACKTRACE": "0",
    "PYTHONHASHSEED": "0",
}


# In the process of a target -----------------------------------------------------------------------


class Counted:
    """Two numbers in a file, that outlive the process: inputs, and those that were refused."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(16))
        self._map = mmap.mmap(os.open(file, os.O_RDWR), 16)

    def add(self, *, refused: bool) -> None:
        inputs, others = struct.unpack("<qq", self._map[:])
        self._map[:] = struct.pack("<qq", inputs + 1, others + refused)


def search(name: str, runs: int, seconds: int) -> None:
    """Search with atheris; what a target raises is kept, and is no reason to stop."""
    import atheris

    excluded = [
        f"fieldwise.{room}.{kernel}"
        for room in ("engines", "explain", "crosses")
        for kernel in KERNELS
    ]
    with atheris.instrument_imports(include=["fieldwise"], exclude=excluded):
        found = target(name)
        from fieldwise.errors import FieldwiseError

    warnings.simplefilter("ignore")
    counted = Counted(WORK / f"{name}.count")

    def one(data: bytes) -> None:
        refused = False
        try:
            found(data)
        except FieldwiseError:
            refused = True
        except BaseException as error:
            keep(name, data, error)
        counted.add(refused=refused)

    corpus, given = WORK / "corpus" / name, Path(tempfile.mkdtemp())
    corpus.mkdir(parents=True, exist_ok=True)
    for k, seed in enumerate(seeds(name)):
        (given / str(k)).write_bytes(seed)
        one(seed)  # what is made once is made here
    prefix = f"-artifact_prefix={WORK / 'fatal' / name}-"
    limits = [f"-runs={runs}", f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY}"]
    about = [f"-timeout={SECONDS}", "-max_len=600", "-verbosity=0", prefix]
    atheris.Setup([sys.argv[0], *limits, *about, str(corpus), str(given)], one)
    atheris.Fuzz()


def keep(name: str, data: bytes, error: BaseException) -> None:
    """An input that fails, once for every place that it fails at."""
    steps = traceback.extract_tb(error.__traceback__)
    ours = [s for s in steps if "/src/fieldwise/" in s.filename]
    at = steps[-1] if isinstance(error, AssertionError) or not ours else ours[-1]
    place = f"{type(error).__name__} {Path(at.filename).name} {at.name}"
    folder = WORK / "findings" / name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / hashlib.sha1(f"{place} {at.line}".encode()).hexdigest()[:12]
    if not file.exists():
        file.write_bytes(data)
        told = "".join(traceback.format_exception(error))
        file.with_suffix(".txt").write_text(f"{place}\n\n{told}", errors="replace")


# The run ------------------------------------------------------------------------------------------


def counts(name: str) -> tuple[int, int]:
    file = WORK / f"{name}.count"
    return struct.unpack("<qq", file.read_bytes()) if file.exists() else (0, 0)


def run(names: list[str], share: float, jobs: int, minutes: float) -> None:
    """Those with the most inputs first: they are the quickest."""
    (WORK / "fatal").mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    wanted = {name: int(1000 * share * ALLOTTED[name]) for name in names}
    names = sorted(names, key=lambda name: -wanted[name])
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda name: run_target(name, wanted[name], end), names))


def run_target(name: str, wanted: int, end: float) -> None:
    """A process after the other, until there were so many inputs or the time is over."""
    about: dict[str, Any] = {"wanted": wanted, "seconds": 0.0, "deaths": 0}
    file = WORK / f"{name}.json"
    if file.exists():
        about |= json.loads(file.read_text()) | {"wanted": wanted}
    while (left := wanted - counts(name)[0]) > 0 and about["deaths"] < DEATHS:
        begun = time.monotonic()
        if begun > end:
            return
        alive = str(int(max(1, min(ALIVE, end - begun))))
        with tempfile.TemporaryDirectory(dir=memory(), prefix="fuzz-") as scratch:
            environment = {**os.environ, **ENVIRONMENT, "TMPDIR": scratch}
            command = [sys.executable, "-m", "fuzz", "search", name, str(left), alive]
            with (WORK / f"{name}.log").open("wb") as log:
                ended = subprocess.run(
                    command, env=environment, stdout=log, stderr=log, check=False
                )
        about["seconds"] += time.monotonic() - begun
        about["deaths"] += ended.returncode != 0
        file.write_text(json.dumps(about))
        print(f"{name}: {counts(name)[0]:,} of {wanted:,}, code {ended.returncode}", flush=True)


def memory() -> str | None:
    """Where files are written that nobody needs afterwards."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def record() -> None:
    from benchmarks.record import save

    figures: dict[str, Any] = {}
    for name in ALLOTTED:
        file = WORK / f"{name}.json"
        if not file.exists():
            continue
        about, (inputs, refused) = json.loads(file.read_text()), counts(name)
        found = sorted((WORK / "findings" / name).glob("*.txt"))
        figures[name] = {
            "inputs": inputs,
            "refused": refused,
            "seconds": round(about["seconds"], 1),
            "failed_before_and_are_replayed": len(list((CORPUS / name).glob("*"))),
            "findings": [path.read_text().split("\n", 1)[0] for path in found],
            "processes_that_died": about["deaths"],
            "fatal": sorted(p.name for p in (WORK / "fatal").glob(f"{name}-*")),
        }
    total = sum(f["inputs"] for f in figures.values())
    seconds = round(sum(f["seconds"] for f in figures.values()), 1)
    path = save("fuzz", "make fuzz", {"inputs": total, "seconds": seconds, "targets": figures})
    print(path, f"{total:,} inputs")
    failed = [name for name, f in figures.items() if f["findings"] or f["fatal"]]
    if failed:
        sys.exit(f"there are findings of {', '.join(failed)}: see {WORK / 'findings'}")


def show(name: str, file: str) -> None:
    target(name)(Path(file).read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parts = parser.add_subparsers(dest="command", required=True)
    one = parts.add_parser("run")
    one.add_argument("--share", type=float, default=1.0, help="of the inputs of a whole run")
    one.add_argument("--jobs", type=int, default=1)
    one.add_argument("--minutes", type=float, default=1e6, help="at most")
    one.add_argument("--only", nargs="*", default=list(ALLOTTED), choices=list(ALLOTTED))
    one.add_argument("--afresh", action="store_true", help="forget the run before")
    for command, arguments in (("search", ("name", "runs", "seconds")), ("show", ("name", "file"))):
        two = parts.add_parser(command)
        for argument in arguments:
            two.add_argument(argument)
    parts.add_parser("record")
    given = parser.parse_args()
    if given.command == "run":
        if given.afresh:
            shutil.rmtree(WORK, ignore_errors=True)
        run(given.only, given.share, given.jobs, given.minutes)
    elif given.command == "search":
        search(given.name, int(given.runs), int(given.seconds))
    elif given.command == "show":
        show(given.name, given.file)
    else:
        record()


if __name__ == "__main__":
    main()
