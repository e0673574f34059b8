"""Training by many workers beside one: exactness, speed, memory, and what the plan says of it.

    make bench-scale                        # writes benchmarks/results/scale.json
    python -m benchmarks.scale simulate     # the plan over workers, batches and networks alone

At Criteo's shape (39 fields, 395,894 rows, ranks by the logarithm: 522 columns), workers of one
thread each. Exactness on an epoch of Frappe, where shared/data is beside the project, else on a
planted table.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import DATA
from benchmarks.record import save
from fieldwise import FieldwiseModel, synthetic
from fieldwise.data.encoding import encode
from fieldwise.data.planted import CRITEO_SIZES
from fieldwise.distributed.planning import Alone, Machine, Network, measured, plan
from fieldwise.layout import Layout

BATCH, STEPS, ROUNDS = 2048, 12, 5
LAYOUT = Layout.of(CRITEO_SIZES, rank_base=1.6)
NETWORKS = {
    "one machine": Network(20e-6, 4e9),
    "10 Gbit/s": Network(),
    "1 Gbit/s": Network(1e-4, 1.25e8),
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launched(n: int, *arguments: str) -> list[dict[str, Any]]:
    """What n workers of one thread print, each one JSON object."""
    port, processes = free_port(), []
    for rank in range(n):
        env = os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NUMBA_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.scale", *arguments]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0] for process in processes]
    assert not any(process.returncode for process in processes)
    return [json.loads(text.strip().splitlines()[-1]) for text in said]


def step_worker(*, talks: bool) -> None:
    """Times rounds of steps at Criteo's shape as one of several workers, each on its own core.
    Workers that do not talk use their own part of the scores: what the machine itself allows."""
    from fieldwise.distributed import joined, share_columns
    from fieldwise.engines import StepSettings
    from fieldwise.engines.sharded import ShardedEngine
    from fieldwise.objective import Objective

    codes, labels, _ = synthetic("criteo", (STEPS + 1) * BATCH, seed=3).block(0)
    with joined() as peers:
        shares = share_columns(LAYOUT, peers.grid.n_shards)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[peers.grid.rank % len(cores)]})
        before = resident()
        steps = StepSettings(batch_size=BATCH, penalty=1e-5, reg_every=1000)
        engine = ShardedEngine(
            *(LAYOUT, shares[peers.grid.shard], peers if talks else Alone(), steps),
            *(Objective(), np.zeros(1)),
            n_jobs=1,
        )
        engine.initialise(0, 0.02)
        engine.state[:] = 1e-6
        held = resident() - before
        data = (codes, None, labels[:, None], None)
        engine.run(codes[:BATCH], None, labels[:BATCH, None], None)
        taken = []
        for _ in range(ROUNDS):
            peers.told(None)
            begun = time.perf_counter()
            engine.run(*data)
            taken.append(time.perf_counter() - begun)
        out = {
            "seconds": statistics.median(taken) / (STEPS + 1),
            "columns": engine.layout.width,
            "table_and_state_bytes": engine._table.nbytes + engine._state.nbytes,
            "resident_bytes": held,
        }
    print(json.dumps(out))


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def speed() -> dict[str, Any]:
    """1, 2 and 3 workers in turns: seconds of a step and memory; the plan's seconds beside."""
    found: dict[int, list[list[dict[str, Any]]]] = {1: [], 2: [], 3: []}
    silent: list[list[dict[str, Any]]] = []
    for _ in range(3):
        for n, runs in found.items():
            runs.append(launched(n, "step-worker"))
        silent.append(launched(2, "silent-step-worker"))
    machine = this_machine()
    out: dict[str, Any] = {"machine": machine.__dict__}
    whole = 2 * 4 * LAYOUT.n_rows * LAYOUT.width
    times = {n: slowest(runs) for n, runs in found.items()}
    apart = slowest(silent)
    out["2_workers_that_do_not_talk"] = {"step_seconds": apart, "times_one": times[1] / apart}
    print(out["2_workers_that_do_not_talk"], flush=True)
    for n, runs in found.items():
        planned = plan(LAYOUT, machine, n_workers=n, network=NETWORKS["one machine"])
        most = max(w["table_and_state_bytes"] for w in runs[0])
        out[f"{n}_workers"] = {
            "step_seconds": times[n],
            "planned_step_seconds": planned.step_seconds,
            "times_one": times[1] / times[n],
            "columns": [w["columns"] for w in runs[0]],
            "table_and_state_bytes": most,
            "share_of_whole": most / whole,
            "share_allowed": 1.1 / n,
            "resident_bytes": max(w["resident_bytes"] for w in runs[0]),
        }
        print(n, out[f"{n}_workers"], flush=True)
    return out


def slowest(runs: list[list[dict[str, Any]]]) -> float:
    """Seconds of a step: of the slowest worker, and the median of the runs."""
    return statistics.median(max(w["seconds"] for w in run) for run in runs)


def this_machine() -> Machine:
    codes = synthetic("criteo", 8 * BATCH, seed=3).block(0)[0]
    return measured(codes, CRITEO_SIZES, batch=BATCH, threads=1)


def train_worker(store: str, out: str) -> None:
    from fieldwise.distributed import train_table
    from fieldwise.train import Running, TrainSettings

    settings = TrainSettings(learning_rate=0.1, epochs=1, averages=1)
    train_table(store, out, running=Running(show=False), rank=16, settings=settings)
    print(json.dumps({}))


def exactness() -> dict[str, Any]:
    """An epoch by 1, 2, 3 and 4 workers beside one process: the largest difference of a weight."""
    from fieldwise.fitting import train_table
    from fieldwise.train import Running, TrainSettings

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if (DATA / "frappe").exists():
            table, target = "frappe", "label"
            encode(frappe(), folder / "store", target=target, min_count=1)
        else:
            table = "planted"
            synthetic([500, 3000, 7, 12, 40], 200_000, seed=1).to_store(folder / "store")
        settings = TrainSettings(learning_rate=0.1, epochs=1, averages=1)
        one = train_table(
            folder / "store",
            folder / "one",
            running=Running(show=False),
            rank=16,
            settings=settings,
        )
        out: dict[str, Any] = {"table": table, "rows": one.settings["rows"]}
        for n in (1, 2, 3, 4):
            launched(n, "train-worker", str(folder / "store"), str(folder / f"m{n}"))
            found = FieldwiseModel.load(folder / f"m{n}")
            out[f"{n}_workers"] = {
                "largest_difference": float(np.abs(found.rows - one.rows).max()),
                "logloss_difference": abs(found.metrics["logloss"] - one.metrics["logloss"]),
            }
    print(out, flush=True)
    return out


def frappe() -> Any:
    import polars as pl

    from benchmarks.compare import parts_of

    return pl.concat(parts_of("frappe")[:1])


def simulated(machine: Machine) -> list[dict[str, Any]]:
    """The plan over workers, batches and networks, at Criteo's shape."""
    out = []
    for name, network in NETWORKS.items():
        for batch in (2048, 16384):
            for n in (1, 2, 4, 8, 16, 32):
                found = plan(LAYOUT, machine, n_workers=n, batch=batch, network=network)
                out.append(
                    {
                        "network": name, "batch": batch, "workers": n,
                        "step_milliseconds": 1e3 * found.step_seconds,
                        "times_one": found.times_one, "bottleneck": found.bottleneck,
                        "gigabytes": (found.table_bytes + found.other_bytes) / 1e9,
                    }
                )  # fmt: skip
    return out


def main() -> None:
    command, *rest = sys.argv[1:] or ["all"]
    if command in ("step-worker", "silent-step-worker"):
        step_worker(talks=command == "step-worker")
    elif command == "train-worker":
        train_worker(*rest)
    elif command == "simulate":
        for row in simulated(this_machine()):
            print(row)
    else:
        found: dict[str, Any] = {"exactness": exactness(), "speed": speed()}
        found["simulation"] = simulated(Machine(**found["speed"]["machine"]))
        print(f"written: {save('scale', 'make bench-scale', found)}")


if __name__ == "__main__":
    main()
