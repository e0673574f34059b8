"""The data layer's figures: raw Criteo text to a store beside a plain Python loop, memory, start.

    make bench-data

Writes benchmarks/results/data.json. Text of 1, 2 and 5 million rows is drawn once under
benchmarks/data (about 3 GB) and kept.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from math import floor, log
from pathlib import Path

import numpy as np

from benchmarks.record import save
from fieldwise import synthetic

MILLIONS = (1, 2, 5)
LOOP_ROWS = 1_000_000
MIN_COUNT = 35
FOLDER = Path(__file__).parent / "data"

ENCODE = """
import json, sys, time
from pathlib import Path
started = time.perf_counter()
from fieldwise import encode
store = encode(sys.argv[1], sys.argv[2], format="criteo", overwrite=True)
seconds = time.perf_counter() - started
# Not ru_maxrss, which a process inherits from the one that started it.
status = Path("/proc/self/status").read_text()
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9
from fieldwise.data import load_vocabulary
words = load_vocabulary(store)
print(json.dumps({
    "rows": store.n_rows, "seconds": seconds, "rows_per_second": store.n_rows / seconds,
    "peak_gb": peak, "distinct_values": sum(f.entries.height for f in words.fields),
}))
"""


def draw(millions: float) -> Path:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"criteo-{millions}m.txt"
    if not path.exists():
        print(f"drawing {millions} million rows ...", flush=True)
        part = path.with_suffix(".part")
        synthetic("criteo", int(millions * 1e6), seed=1).to_text(part)
        part.rename(path)
    return path


def encoded(path: Path, out: Path) -> dict[str, float]:
    """In a process of its own, import included, for time and peak memory."""
    command = [sys.executable, "-c", ENCODE, str(path), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def plain_loop(path: Path) -> np.ndarray:
    """The same work in plain Python, a row at a time: count, then encode. codes (n, 40)"""

    def keys(line: str) -> list[object]:
        cells = line.rstrip("\n").split("\t")
        for j in range(1, 14):
            if cells[j]:
                v = int(cells[j])
                cells[j] = floor(log(v) ** 2) if v > 2 else v - 2  # type: ignore[call-overload]
        return cells  # type: ignore[return-value]

    counts: list[Counter[object]] = [Counter() for _ in range(40)]
    with path.open() as file:
        for line in file:
            for j, key in enumerate(keys(line)):
                counts[j][key] += 1
    codes = []
    for count in counts[1:]:
        own = [k for k, n in count.items() if n >= MIN_COUNT]
        own.sort(key=lambda k: (-count[k], (0, 0) if k == "" else (1, k)))
        codes.append({k: i for i, k in enumerate(own, start=1)})
    n_rows = counts[0].total()
    out = np.empty((n_rows, 40), dtype=np.int32)
    with path.open() as file:
        for i, line in enumerate(file):
            cells = keys(line)
            out[i, 0] = int(str(cells[0]))
            for j in range(39):
                out[i, j + 1] = codes[j].get(cells[j + 1], 0)
    return out


def beside_the_loop(out: Path) -> dict[str, float]:
    """Both on the same rows; the codes must be the same."""
    from fieldwise.data import Store

    path = draw(LOOP_ROWS // 10**6)
    started = time.perf_counter()
    codes = plain_loop(path)
    seconds = time.perf_counter() - started
    encoded(path, out)
    store = Store(out)
    if not np.array_equal(store.read(0, store.n_rows)["codes"], codes[:, 1:]):
        raise SystemExit("the plain loop and fieldwise give different codes")
    return {"rows": LOOP_ROWS, "seconds": seconds, "rows_per_second": LOOP_ROWS / seconds}


def start_up(arguments: list[str], times: int = 9) -> float:
    """Median seconds of a fresh process."""

    taken = []
    for _ in range(times):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    out = Path(tempfile.mkdtemp(dir=FOLDER.parent)) / "store"
    try:
        loop = beside_the_loop(out)
        print(f"plain Python loop: {loop['rows_per_second']:,.0f} rows/s", flush=True)
        runs = []
        for millions in MILLIONS:
            path = draw(millions)
            found = [encoded(path, out) for _ in range(3)]
            middle = sorted(found, key=lambda f: f["seconds"])[1]
            runs.append({**middle, "all_seconds": [f["seconds"] for f in found]})
            print(
                f"{millions} M rows: {middle['rows_per_second']:,.0f} rows/s, "
                f"peak {middle['peak_gb']:.2f} GB, {middle['distinct_values']:,} distinct values",
                flush=True,
            )
        figures = {
            "task": "raw Criteo-format text to a finished store, import of the package included",
            "plain_loop": loop,
            "encode": runs,
            "times_plain_loop": runs[0]["rows_per_second"] / loop["rows_per_second"],
            "import_seconds": start_up(["-c", "import fieldwise"]),
            "help_seconds": start_up(["-m", "fieldwise", "--help"]),
            "bare_python_seconds": start_up(["-c", "pass"]),
        }
        print(f"times the plain loop: {figures['times_plain_loop']:.1f}")
        print(f"import {figures['import_seconds']:.3f} s, --help {figures['help_seconds']:.3f} s")
        print(f"written: {save('data', 'make bench-data', figures)}")
    finally:
        shutil.rmtree(out.parent)


if __name__ == "__main__":
    main()
