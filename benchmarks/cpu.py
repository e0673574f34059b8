"""The CPU engine's figures: a training step beside torch, its stages, bytes, and how cost grows.

    make bench-cpu

Writes benchmarks/results/cpu.json. Needs about 9 GB of memory. Shapes and settings are the paper's,
codes follow a Zipf law in every field. "published" is the published algorithm: a torch embedding
with dense gradients and Adagrad over the whole table ("published_fused": torch's fused Adagrad);
"sparse" is torch's sparse counterpart, which has no weight decay. One step of it and one of ours
without decay must leave the same table.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as logistic

from benchmarks.peers import OneTable
from benchmarks.record import save, timed
from fieldwise import FieldwiseClassifier, Layout, synthetic
from fieldwise.data.planted import AVAZU_SIZES, CRITEO_SIZES
from fieldwise.engines import StepSettings, _kernels
from fieldwise.engines.cpu import CpuEngine, padded, table_rows
from fieldwise.train import initialise

BATCH = 2048
STEPS = 32  # of one timed run; codes are fresh in each, as in an epoch
RUNS = 7
THREADS = os.cpu_count() or 1
SHAPES: dict[str, tuple[Layout, float, float]] = {  # layout, learning rate, decay
    "criteo": (Layout.of(CRITEO_SIZES, rank_base=1.6), 0.01, 1e-6),
    "avazu": (Layout.of(AVAZU_SIZES, rank=8), 0.1, 1e-8),
}


def median(work: Callable[[], object], times: int = RUNS) -> float:
    """Seconds of one run, after another to warm up."""
    work()
    return timed(work, times)


def engine_of(layout: Layout, **settings: Any) -> CpuEngine:
    step = StepSettings(**{"penalty": 0.0, "batch_size": BATCH, **settings})
    engine = CpuEngine(layout, step)
    initialise(engine.table, seed=0, scale=0.02)
    engine.state[:] = 1e-6
    return engine


def copy_bandwidth() -> float:
    """Bytes read and written a second, all threads copying."""
    source, out = np.ones((THREADS, 1 << 26), np.float32), np.zeros((THREADS, 1 << 26), np.float32)
    with ThreadPoolExecutor(THREADS) as pool:
        seconds = median(lambda: list(pool.map(np.copyto, out, source)))
    return 2 * source.nbytes / seconds


def beside_torch(name: str, bandwidth: float) -> dict[str, Any]:
    layout, lr, decay = SHAPES[name]
    codes, y = synthetic(name, (RUNS + 1) * STEPS * BATCH, seed=1).arrays()
    y = y[:, None]
    found: dict[str, Any] = {
        "fields": layout.n_fields,
        "rows_of_table": layout.n_rows,
        "columns": layout.width,
        "parameters": layout.n_parameters,
        "samples_per_second": {},
    }
    speed = found["samples_per_second"]
    engine = engine_of(layout, learning_rate=lr, weight_decay=decay)
    chunks = list(zip(np.split(codes, RUNS + 1), np.split(y, RUNS + 1), strict=True))
    taken = [timed(partial(engine.run, c, None, t, None)) for c, t in chunks]
    speed["fieldwise"] = STEPS * BATCH / statistics.median(taken[1:])
    found["all_runs"] = [STEPS * BATCH / seconds for seconds in taken[1:]]
    print(f"{name}: fieldwise {speed['fieldwise']:,.0f} samples/s", flush=True)
    found["stages"] = stages(engine, *chunks[1], bandwidth)
    del engine
    gc.collect()
    rows, target = torch.from_numpy(layout.rows(codes)), torch.from_numpy(y[:, 0])
    batches = list(zip(rows.split(BATCH), target.split(BATCH), strict=True))
    first = codes[:BATCH], y[:BATCH]
    speed["sparse"], found["difference_after_a_step"] = sparse_steps(layout, lr, batches, first)
    gc.collect()
    speed["published"] = dense_steps(layout, lr, decay, batches)
    gc.collect()
    speed["published_fused"] = dense_steps(layout, lr, decay, batches, fused=True)
    gc.collect()
    for peer in ("sparse", "published", "published_fused"):
        found[f"times_{peer}"] = speed["fieldwise"] / speed[peer]
        print(
            f"{name}: {peer} {speed[peer]:,.0f} samples/s; fieldwise is "
            f"{found[f'times_{peer}']:.0f} times as fast",
            flush=True,
        )
    return found


def torch_steps(
    layout: Layout, batches: list[Any], *, sparse: bool, **options: Any
) -> Iterator[tuple[float, OneTable, Any]]:
    """Seconds of each step, and what it left."""
    table = np.empty((layout.n_rows, layout.width), np.float32)
    initialise(table, seed=0, scale=0.02)
    model = OneTable(layout, table, sparse=sparse)
    optimiser = torch.optim.Adagrad(
        model.parameters(), initial_accumulator_value=1e-6, eps=1e-10, **options
    )

    def step(rows: torch.Tensor, y: torch.Tensor) -> None:
        optimiser.zero_grad()
        logistic(model(rows), y).backward()
        optimiser.step()

    for rows, y in batches:
        yield timed(partial(step, rows, y)), model, optimiser


def dense_steps(
    layout: Layout, lr: float, decay: float, batches: list[Any], **options: bool
) -> float:
    steps = torch_steps(layout, batches[:4], sparse=False, lr=lr, weight_decay=decay, **options)
    return BATCH / statistics.median([seconds for seconds, *_ in steps][1:])


def sparse_steps(
    layout: Layout, lr: float, batches: list[Any], first: tuple[np.ndarray, np.ndarray]
) -> tuple[float, dict[str, float]]:
    """Samples a second, and how far one step is from ours without decay."""
    steps = torch_steps(layout, batches[:9], sparse=True, lr=lr)
    _, model, optimiser = next(steps)
    engine = engine_of(layout, learning_rate=lr, weight_decay=0.0)
    engine.run(first[0], None, first[1], None)
    weight = model.table.weight
    theirs = {"table": weight.detach(), "state": optimiser.state[weight]["sum"]}
    far = {name: farthest(getattr(engine, name), found.numpy()) for name, found in theirs.items()}
    print(f"after a step the tables differ by {far['table']:.1e} at most", flush=True)
    if not far["table"] < 1e-4:
        raise SystemExit("a step of the engine and one of torch's sparse Adagrad differ")
    del engine
    return BATCH / statistics.median(seconds for seconds, *_ in steps), far


def farthest(a: np.ndarray, b: np.ndarray) -> float:
    """max |a - b|, some rows at a time."""
    parts = range(0, len(a), 1 << 16)
    return max(float(np.abs(a[k : k + (1 << 16)] - b[k : k + (1 << 16)]).max()) for k in parts)


def stages(engine: CpuEngine, codes: np.ndarray, y: np.ndarray, bandwidth: float) -> dict[str, Any]:
    """Microseconds of each kernel a step, bytes a step, and the share of a plain copy's speed."""
    scratch, layout, threads = engine._scratch, engine.layout, engine.n_threads
    rows, w, x = table_rows(layout, codes), np.ones((BATCH, 1), np.float32), np.ones((1, 1), "f4")
    objective = engine._kernel_objective()
    step = engine.settings
    rates = np.float32(step.learning_rate), np.float32(step.weight_decay)
    steps = (*rates, layout.n_outputs, layout.n_fields)
    names = ("forward", "group", "share_out", "update")
    taken: dict[str, list[float]] = {name: [] for name in names}
    n_distinct = []
    for first in range(0, len(rows), BATCH):
        data = (rows[first : first + BATCH], x, y[first : first + BATCH], w)
        clock = [time.perf_counter()]
        _kernels.forward(
            *(engine._table, data, layout.starts, layout.slot_starts, objective),
            *(scratch.samples, threads, False),
        )
        clock.append(time.perf_counter())
        total = _kernels.group(
            *(data[0], x, layout.slot_starts, scratch.places, scratch.entries, scratch.runs),
            threads,
        )
        clock.append(time.perf_counter())
        _kernels.share_out(*scratch.runs[2:4], total, scratch.shares, threads)
        clock.append(time.perf_counter())
        _kernels.update(
            *(engine._table, engine._state, scratch.samples[:3], x, scratch.entries),
            *(scratch.runs, scratch.shares, layout.starts, steps, False, threads, False),
        )
        clock.append(time.perf_counter())
        n_distinct.append(total)
        for name, seconds in zip(names, np.diff(clock), strict=True):
            taken[name].append(1e6 * seconds)
    micro = {name: statistics.median(values) for name, values in taken.items()}
    row = 4 * padded(engine.layout)
    n = statistics.mean(n_distinct)
    moved = {
        "forward": BATCH * engine.layout.n_fields * row,  # rows read; repeated ones from cache
        "update": 4 * n * row,  # table and state of distinct rows, read and written
        "buffers": 4 * BATCH * row,  # a and c, written and read
    }
    speed = 1e6 * sum(moved.values()) / sum(micro.values())
    print(
        "  stages: "
        + ", ".join(f"{k} {v:,.0f} us" for k, v in micro.items())
        + f"; {speed / 1e9:.1f} GB/s, {speed / bandwidth:.2f} of a copy's",
        flush=True,
    )
    return {
        "microseconds": micro,
        "distinct_rows_per_step": n,
        "bytes_per_step": moved,
        "bytes_per_second": speed,
        "share_of_copy_bandwidth": speed / bandwidth,
        "floor_microseconds": 1e6 * sum(moved.values()) / bandwidth,
    }


def scoring() -> dict[str, float]:
    """Coded rows of Criteo's shape at rank 8."""
    codes, _ = synthetic("criteo", 500_000, seed=2).arrays()
    engine = engine_of(Layout.of(CRITEO_SIZES, rank=8))
    speed = len(codes) / median(partial(engine.scores, codes, None))
    print(f"scoring, 39 fields of rank 8: {speed:,.0f} rows/s", flush=True)
    return {"fields": 39, "rank": 8, "rows": len(codes), "rows_per_second": speed}


def one_row() -> dict[str, float]:
    """Microseconds of one raw row, a dict of strings, from its words to its probability."""
    with tempfile.TemporaryDirectory() as folder:
        text = synthetic("criteo", 100_000, seed=3).to_text(Path(folder) / "rows.txt")
        names = ["label", *(f"f{j}" for j in range(len(CRITEO_SIZES)))]
        options = {"separator": "\t", "has_header": False, "infer_schema": False}
        frame = pl.read_csv(text, new_columns=names, **options)
    kinds = dict.fromkeys(names[1:], "category")
    estimator = FieldwiseClassifier(rank=8, epochs=1, learning_rate=0.1, kinds=kinds)
    model = estimator.fit(frame.drop("label"), frame["label"].to_numpy()).model_
    rows = frame.drop("label").tail(5000).to_dicts()
    model.predict_proba(rows[0])  # builds the dictionaries
    taken = [1e6 * timed(partial(model.predict_proba, row)) for row in rows]
    found = {"median": statistics.median(taken), "p99": float(np.quantile(taken, 0.99))}
    print(f"one raw row of 39 strings: {found['median']:.0f} us, p99 {found['p99']:.0f}")
    return {"fields": len(CRITEO_SIZES), "rank": 8, "rows": len(rows), **found}


FIRST_STEP = """
import numpy as np
from fieldwise import Layout
from fieldwise.engines import StepSettings, make_engine
engine = make_engine("cpu", Layout.of([1000] * 39, rank=8), StepSettings())
engine.run(np.zeros((4096, 39), np.int32), None, np.zeros((4096, 1), np.float32), None)
"""


def first_step() -> float:
    """Seconds from starting Python to the end of the first steps, the cache of kernels warm."""
    command = [sys.executable, "-c", FIRST_STEP]
    seconds = median(partial(subprocess.run, command, check=True), 5)
    print(f"a new process has done its first step after {seconds:.2f} s", flush=True)
    return seconds


TRAIN_STORE = """
import json, sys, threading, time
from pathlib import Path
from fieldwise.train import TrainSettings
from fieldwise.data import Store
from fieldwise.fitting import fit_store
peak, done = 0, threading.Event()
def watch():  # what the process needs; pages of the mapped store are the system's to drop
    global peak
    while not done.wait(0.02):
        status = Path("/proc/self/status").read_text()
        peak = max(peak, int(status.split("RssAnon:")[1].split()[0]) * 1024)
watcher = threading.Thread(target=watch)
watcher.start()
settings = TrainSettings(epochs=1, learning_rate=0.1)
model = fit_store(Store(sys.argv[1]), settings=settings, rank=8)
done.set()
watcher.join()
(epoch,) = model.history
print(json.dumps({"peak_bytes": peak, "rows_per_second": epoch["rows_per_second"]}))
"""


def training_from_a_store() -> list[dict[str, float]]:
    """Peak memory of an epoch over stores of growing size."""
    out = []
    for n_rows in (4_000_000, 8_000_000, 16_000_000):
        with tempfile.TemporaryDirectory() as folder:
            synthetic([1000] * 20, n_rows, seed=0).to_store(Path(folder) / "s")
            command = [sys.executable, "-c", TRAIN_STORE, str(Path(folder) / "s")]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = {"rows": n_rows, "bytes_of_store": n_rows * (20 * 4 + 8), **json.loads(done.stdout)}
        out.append(found)
        print(
            f"training from a store of {n_rows:,} rows: {found['peak_bytes'] / 1e6:,.0f} MB, "
            f"{found['rows_per_second']:,.0f} rows/s",
            flush=True,
        )
    return out


def drawn(layout: Layout, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes drawn uniformly from the first 1000 categories, and labels."""
    random = np.random.default_rng(0)
    top = np.minimum(layout.sizes, 1000)
    codes = random.integers(0, top, (n, layout.n_fields), dtype=np.int32)
    return codes, random.integers(0, 2, (n, 1)).astype(np.float32)


def run_seconds(layout: Layout, n_rows: int, times: int = RUNS, **settings: Any) -> float:
    codes, y = drawn(layout, n_rows)
    engine = engine_of(layout, **settings)
    return median(partial(engine.run, codes, None, y, None), times)


def cost_over_rows() -> list[dict[str, float]]:
    layout = Layout.of([1000] * 39, rank=8)
    out = []
    for n_rows in (500_000, 1_000_000, 2_000_000):
        seconds = run_seconds(layout, n_rows, times=3)
        out.append({"rows": n_rows, "seconds": seconds, "rows_per_second": n_rows / seconds})
        print(f"{n_rows:,} rows, 39 fields of rank 8: {seconds:.2f} s", flush=True)
    return out


def cost_of_a_step() -> dict[str, list[dict[str, float]]]:
    """Milliseconds of a step over rank, fields (the rank, then R held fixed), and categories."""
    plans = {
        "rank": [(20, rank, 1000) for rank in (2, 4, 8, 16)],
        "fields": [(m, 8, 1000) for m in (10, 20, 40)],
        "fields_same_columns": [(m, 160 // m, 1000) for m in (10, 20, 40)],
        "categories": [(10, 8, size) for size in (10**3, 10**4, 10**5)],
    }
    out = {}
    for name, plan in plans.items():
        out[name] = []
        for m, rank, size in plan:
            layout = Layout.of([size] * m, rank=rank)
            step = 1e3 * run_seconds(layout, STEPS * BATCH) / STEPS
            shape = {"fields": m, "rank": rank, "categories": size, "width": padded(layout)}
            out[name].append({**shape, "milliseconds": step})
        steps = ", ".join(f"{found['milliseconds']:.2f}" for found in out[name])
        print(f"a step over {name}: {steps} ms", flush=True)
    return out


def cost_of_the_penalty() -> list[dict[str, float]]:
    """Milliseconds of a step with the penalty and of one without, over rank."""
    out = []
    for rank in (4, 8, 16, 32):
        layout = Layout.of([5000] * 20, rank=rank)
        plain = 1e3 * run_seconds(layout, STEPS * BATCH) / STEPS
        whole = 1e3 * run_seconds(layout, BATCH, penalty=1e-5, reg_every=1)
        out.append({"rank": rank, "rows_of_table": layout.n_rows, "with": whole, "without": plain})
        print(f"penalty, rank {rank}: {whole:.0f} ms, {plain:.1f} ms without", flush=True)
    return out


def main() -> None:
    torch.set_num_threads(THREADS)
    warnings.filterwarnings("ignore", "Sparse invariant checks")  # torch's, at every first step
    before = os.getloadavg()[0]
    bandwidth = copy_bandwidth()
    print(f"a copy moves {bandwidth / 1e9:.1f} GB/s, read and written", flush=True)
    figures = {
        "task": f"training steps of {BATCH} rows, medians; codes Zipf(1.05) in every field",
        "threads": THREADS,
        "load_average_before": before,
        "copy_bytes_per_second": bandwidth,
        "training": {name: beside_torch(name, bandwidth) for name in SHAPES},
        "scoring": scoring(),
        "one_row_microseconds": one_row(),
        "seconds_to_first_step": first_step(),
        "from_a_store": training_from_a_store(),
        "rows": cost_over_rows(),
        "step": cost_of_a_step(),
        "penalty_milliseconds": cost_of_the_penalty(),
    }
    print(f"written: {save('cpu', 'make bench-cpu', figures)}")


if __name__ == "__main__":
    main()
