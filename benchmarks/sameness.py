"""The same seed, the same bits: every case of tests/sameness.py with other threads and hashes in
processes of their own; and how far another kind of processor is away.

    python -m benchmarks.sameness [ROWS]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from .record import save

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from sameness import CASES, PLAIN_PROCESSOR, elsewhere, threads

N_ROWS = 20_000
THREADS = ((1, 0), (2, 1), (3, 2), (5, 3))  # with as many seeds for hashes


def same_bits(n: int) -> dict[str, Any]:
    """Of every case how many arrays there are, and those that differ between processes."""
    names = list(CASES)
    found = [elsewhere(names, n=n, **threads(*given)) for given in THREADS]
    first, *others = found
    return {
        "rows": n,
        "threads": [t for t, _ in THREADS],
        "cases": names,
        "arrays": len(first),
        "different": sorted(k for k in first if any(o[k] != first[k] for o in others)),
    }


def another_processor(n: int) -> dict[str, Any]:
    """The largest distances from what a processor without AVX and fused products computes."""
    names, out = ["epoch", "fast", "number", "glass", "best", "three", "weighted"], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        elsewhere(names, folder / "here.npz", n=n)
        more = {"NUMBA_CACHE_DIR": name, **PLAIN_PROCESSOR}
        elsewhere(names, folder / "there.npz", n=n, **more)
        here, there = np.load(folder / "here.npz"), np.load(folder / "there.npz")
        for key in here.files:
            if here[key].dtype.kind == "f":
                away = np.abs(here[key].astype(np.float64) - there[key])
                out[key] = {"largest": float(np.abs(here[key]).max()), "away": float(away.max())}
            else:
                out[key] = {"different": int((here[key] != there[key]).sum())}
    return {"rows": n, "emulated": dict(PLAIN_PROCESSOR), "found": out}


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else N_ROWS
    figures = {"same_bits": same_bits(n), "another_processor": another_processor(min(n, 4000))}
    print(save("sameness", f"python -m benchmarks.sameness {n}", figures))


if __name__ == "__main__":
    main()
