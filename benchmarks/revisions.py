"""A training step of this working tree over one of an earlier revision, taken in turns.

    python -m benchmarks.revisions REVISION

Two processes, one a version of the source, take the same steps one after the other, so that a noisy
machine troubles both alike. Writes benchmarks/results/revisions.json.
"""

from __future__ import annotations

import inspect
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BATCH, STEPS, RUNS = 2048, 8, 60
SHAPES = {
    "criteo": {"rank_base": 1.6},
    "avazu": {"rank": 8},
}


def worker(shape: str) -> None:
    """Takes steps whenever a line comes in; answers with the seconds they took."""
    import numpy as np

    from fieldwise import Layout, synthetic
    from fieldwise.engines import StepSettings
    from fieldwise.engines.cpu import CpuEngine
    from fieldwise.train import initialise

    drawn = synthetic(shape, (RUNS + 1) * STEPS * BATCH, seed=1)
    codes, y = drawn.arrays()
    layout = Layout.of(drawn.sizes, **SHAPES[shape])
    engine = CpuEngine(layout, StepSettings(0.01, 1e-6, 0.0))
    initialise(engine.table, seed=0, scale=0.02)
    engine.state[:] = 1e-6
    # Targets became columns when outputs came in.
    target = y[:, None] if "objective" in inspect.signature(CpuEngine).parameters else y
    target = target.astype(np.float32)
    for k in range(RUNS + 1):
        sys.stdin.readline()
        part = slice(k * STEPS * BATCH, (k + 1) * STEPS * BATCH)
        started = time.perf_counter()
        engine.run(codes[part], None, target[part], None)
        print(time.perf_counter() - started, flush=True)


def begun(source: Path, shape: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", shape]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, cwd=source, **pipes)


def steps(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def seconds_of(old: Path, shape: str) -> tuple[list[float], list[float]]:
    """Old and new, a run of steps each; the first, which compiles, is left out."""
    both = [begun(old / "src", shape), begun(ROOT / "src", shape)]
    try:
        taken: tuple[list[float], list[float]] = ([], [])
        for k in range(RUNS + 1):
            for at in (0, 1) if k % 2 else (1, 0):
                taken[at].append(steps(both[at]))
        return taken[0][1:], taken[1][1:]
    finally:
        for process in both:
            process.kill()
            process.wait()


def main(revision: str) -> None:
    from benchmarks.record import save

    figures: dict[str, Any] = {"task": "a plain step over an earlier revision's", "than": revision}
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(old), revision], check=True)
        try:
            for shape in SHAPES:
                before, now = seconds_of(old, shape)
                figures[shape] = {
                    "ratio_of_medians": statistics.median(now) / statistics.median(before),
                    "ratio_of_fastest": min(now) / min(before),
                    "seconds_before": before,
                    "seconds_now": now,
                }
                print(
                    f"{shape}: {figures[shape]['ratio_of_medians']:.3f} of {revision}, the fastest "
                    f"{figures[shape]['ratio_of_fastest']:.3f}",
                    flush=True,
                )
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    print(f"written: {save('revisions', f'python -m benchmarks.revisions {revision}', figures)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2])
    else:
        main(sys.argv[1])
