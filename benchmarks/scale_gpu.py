"""Columns shared out between GPUs, as far as one GPU can show it. Needs torch, Triton and NumPy.

    python -m benchmarks.scale_gpu          # writes benchmarks/results/scale_gpu.json

Two workers on one GPU give what one engine gives (over gloo: NCCL wants a GPU for each). Then every
shard of Criteo's shape is timed alone, as it would run on a GPU of its own: steps recorded in a
graph, the sum of scores left out, which NCCL takes some ten microseconds for.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.record import save
from fieldwise.data.planted import CRITEO_SIZES, Synthetic
from fieldwise.distributed import joined, share_columns
from fieldwise.engines import StepSettings, host, make_engine
from fieldwise.engines.sharded_gpu import ShardedGpuEngine
from fieldwise.layout import Layout
from fieldwise.objective import Objective
from fieldwise.train import initialise

BATCH, STEPS, ROUNDS = 2048, 320, 5
WHOLE = Layout.of(CRITEO_SIZES, rank_base=1.6)
SMALL = Layout.of((40, 300, 7, 90, 25), rank=6)


class Alone:
    """The peers of a shard that is timed by itself."""

    row_group, n_row_groups, is_recordable = 0, 1, True

    def add_groups(self, array: Any) -> None:
        pass

    def add_scores(self, scores: Any) -> Callable[[], None]:
        return lambda: None


def settings(**more: Any) -> StepSettings:
    return StepSettings(batch_size=more.pop("batch_size", BATCH), reg_every=1000, **more)


def rows(layout: Layout, n: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = Synthetic(layout.sizes, n, 3)
    codes = np.concatenate(
        [drawn._codes(k, min(1 << 16, n - k * (1 << 16))) for k in range(drawn.n_blocks)]
    )
    return codes, (np.arange(n) % 3 == 0).astype(np.float32)[:, None]


def step_microseconds(engine: Any, layout: Layout) -> float:
    codes, y = rows(layout, STEPS * BATCH)
    codes, y = torch.from_numpy(codes).to(engine.device), torch.from_numpy(y).to(engine.device)
    taken = []
    for _ in range(ROUNDS + 3):
        engine.totals.cpu()
        begun = time.perf_counter()
        engine.run(codes, None, y, None)
        engine.totals.cpu()
        taken.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(taken[3:]) / STEPS


def speed() -> dict[str, Any]:
    about = (settings(), Objective(), np.zeros(1))
    one = make_engine("gpu", WHOLE, about[0], objective=about[1], offsets=about[2])
    initialise(one.table, 0, 0.02)
    one.state.fill_(1e-6)
    out: dict[str, Any] = {"one_engine": step_microseconds(one, WHOLE)}
    del one
    for n in (1, 2, 4, 8):
        fields = max(share_columns(WHOLE, n), key=lambda own: sum(WHOLE.widths[i] for i in own))
        engine = ShardedGpuEngine(WHOLE, fields, Alone(), *about)
        engine.initialise(0, 0.02)
        engine.state.fill_(1e-6)
        out[f"{n}_shards"] = {
            "columns": engine.layout.width,
            "microseconds": step_microseconds(engine, WHOLE),
            "table_bytes": engine._table.nbytes,
        }
        del engine
    return out


def worker() -> None:
    codes, y = rows(SMALL, 64 * 256)
    about = (settings(batch_size=256, penalty=1e-4), Objective(), np.zeros(1))
    with joined() as peers:
        peers.use_device()
        fields = share_columns(SMALL, peers.grid.n_shards)[peers.grid.shard]
        engine = ShardedGpuEngine(SMALL, fields, peers, *about)
        engine.initialise(0, 0.02)
        engine.state.fill_(1e-6)
        engine.run(codes, None, y, None)
        z = engine.scores(codes[:500], None)
        whole = make_engine("gpu", SMALL, about[0], objective=about[1], offsets=about[2])
        initialise(whole.table, 0, 0.02)
        whole.state.fill_(1e-6)
        whole.run(codes, None, y, None)
        held = host(whole.table)[:, engine.columns]
        mine = host(engine.table)
        n = engine.layout.n_columns
        gap = float(np.abs(held[:, :n] - mine[:, :n]).max())
        scores = float(np.abs(whole.scores(codes[:500], None) - z).max())
        print(json.dumps({"recorded": peers.is_recordable, "table": gap, "scores": scores}))


def exactness(n: int) -> list[dict[str, Any]]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    processes = []
    for rank in range(n):
        env = os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.scale_gpu", "worker"]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0] for process in processes]
    return [json.loads(text.strip().splitlines()[-1]) for text in said]


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        worker()
    else:
        found = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "two_workers_on_one_gpu": exactness(2),
            "one_worker": exactness(1),
            "step": speed(),
        }
        print(save("scale_gpu", "python -m benchmarks.scale_gpu", found).read_text())
