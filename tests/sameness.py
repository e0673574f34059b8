"""What a seed must give again, bit for bit: models of every kind, what they say, what they are
exported and compressed to. Run as a program it prints a checksum of each, by name, or with a file
to write keeps the arrays themselves; `elsewhere` is that in another process.

    python tests/sameness.py NAME,NAME ROWS [arrays.npz]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise import FieldwiseClassifier, FieldwiseRegressor, boosted
from fieldwise.compress import compress
from fieldwise.engines import StepSettings, make_engine
from fieldwise.export import export
from fieldwise.layout import Layout
from serving import TARGETS, clicks

__all__ = [
    "CASES",
    "PLAIN_PROCESSOR",
    "arrays_of",
    "digest",
    "elsewhere",
    "epoch",
    "files_of",
    "threads",
]

# An old processor, as far as those who compile for this one and choose by it can be told: neither
# AVX nor fused products. Numba's cache must be another one.
PLAIN_PROCESSOR = {
    "NUMBA_CPU_NAME": "nocona",
    "NUMBA_CPU_FEATURES": "",
    "OPENBLAS_CORETYPE": "Prescott",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
}


def threads(n: int, seed: int) -> dict[str, str]:
    """The environment of a process with so many threads of every kind, and a seed for hashes."""
    kinds = ("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS")
    return {"PYTHONHASHSEED": str(seed), **dict.fromkeys(kinds, str(n))}


N_ROWS = 4000  # enough that steps and scores are shared out between threads
COMMON: dict[str, Any] = {
    "kinds": {"age": "linear"},
    "epochs": 2,
    "rank": 8,
    "learning_rate": 0.1,
    "batch_size": 2048,
    "device": "cpu",
}
CROSSED = {"preset": "glass", "n_bins": 8, "kinds": None}

# Every case is a target and the estimator's settings; `weight` and `trials` are the rows'.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fast": ("click", {"penalty": 1e-3, "reg_every": 2}),
    "search": ("click", {"learning_rate": None, "batch_size": None}),
    "glass": ("click", CROSSED),
    "best": ("click", {**CROSSED, "preset": "best"}),
    "best of three": ("level", {**CROSSED, "preset": "best"}),
    "best of numbers": ("amount", {**CROSSED, "preset": "best"}),
    "three": ("level", {}),
    "labels": ("labels", {}),
    "number": ("amount", {}),
    "counts": ("hour", {"loss": "poisson"}),
    "huber": ("amount", {"loss": "huber"}),
    "absolute": ("amount", {"loss": "absolute"}),
    "weighted": ("click", {"combine": "weighted"}),
    "vote": ("click", {"combine": "vote"}),
    "weighted vote": ("level", {"combine": "weighted_vote"}),
    "ensemble": ("click", {"n_members": 3, "bagging": True}),
    "ensemble of votes": ("level", {"combine": "vote", "n_members": 2}),
    "weights": ("click", {"weight": True}),
    "trials": ("click", {"trials": True}),
    "distinct": ("click", {"aggregate": True, "weight": True}),
    "bounded": ("click", {"max_variance": 0.5, "max_mean": 0.5, "reg_every": 2}),
    "fm": ("click", {"component": "fm", "rank": 2, "batch_size": 256}),
    "paper": ("click", {"weight_decay": 1e-4, "averages": 1, "rank": None, "rank_base": 1.6}),
}


def learned(case: str, n_jobs: int | None = None, n: int = N_ROWS) -> tuple[Any, pl.DataFrame]:
    """The estimator of a case, and the rows it was fitted on."""
    target, given = CASES[case]
    frame = clicks(3, n)
    X = frame.drop(TARGETS)
    settings = {**COMMON, **given, "n_jobs": n_jobs}
    more: dict[str, Any] = {}
    if settings.pop("weight", False):
        more["sample_weight"] = np.random.default_rng(1).lognormal(0, 2, n)
    if settings.pop("trials", False):
        more["n_trials"] = np.random.default_rng(1).integers(1, 9, n)
    if settings.get("preset"):
        X = X.drop("tags")
    if target == "hour":
        X = X.drop("hour")
    if target == "labels":
        y = frame.select("click", late=(pl.col("amount") > 0.5).cast(int)).to_numpy()
    else:
        y = frame[target].to_numpy()
    kind = FieldwiseRegressor if target in ("amount", "hour") else FieldwiseClassifier
    before = boosted.MEMBERS, boosted.MOST_TREES
    boosted.MEMBERS, boosted.MOST_TREES = 2, 20
    try:
        return kind(**settings).fit(X, y, **more), X
    finally:
        boosted.MEMBERS, boosted.MOST_TREES = before


def arrays_of(case: str, n_jobs: int | None = None, n: int = N_ROWS) -> dict[str, np.ndarray]:
    """What a model of this kind learned, and everything that it says of some rows."""
    found, X = learned(case, n_jobs, n)
    model, some = found.model_, X.head(300)
    out = {"table": model.table, "offsets": model.offsets}
    out["metrics"] = np.array([model.metrics[name] for name in sorted(model.metrics)])
    out["scores"] = np.asarray(found._scores(X))
    out["predictions"] = np.asarray(found.predict(some)).astype("U")
    if model.layout.component == "linear" and not model.objective.is_vote:
        said = model.explain(some)
        out["shapley"], out["fields"] = said.shapley, said.fields
    if model.moments is not None:
        out["moments"] = model.moments
    if model.layout.component == "linear":
        out["importance"] = np.array(sorted(model.importance().items()), "U99,f8")["f1"]
    return {f"{case}: {name}": np.asarray(array) for name, array in out.items()}


def files_of(case: str) -> dict[str, bytes]:
    """What a model exports to, and its table packed: the same bytes whenever it is asked."""
    model = learned(case)[0].model_
    target = model.schema.target.column
    judge = clicks(4, 400).select(*model.schema.columns, pl.col(CASES[case][0]).alias(target))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compress(model, judge, max_loss=0.01).model.save(folder / "small")
        out = {f: (folder / "small" / f).read_bytes() for f in ("table.safetensors", "model.json")}
        for kind in ("onnx", "sql", "python"):
            out[kind] = export(model, folder / f"m.{kind}", to=kind).read_bytes()
    return out


def epoch(n: int = N_ROWS) -> dict[str, np.ndarray]:
    """What steps over some rows, the penalty among them, make of a table, by kernels alone."""
    random = np.random.default_rng(0)
    layout = Layout((400, 7, 3000, 24), (8, 2, 12, 5))
    codes = np.stack([random.integers(0, d, n) for d in layout.sizes], axis=1).astype(np.int32)
    y = ((codes[:, :1] + codes[:, 1:2]) % 2).astype(np.float64)
    settings = StepSettings(learning_rate=0.05, penalty=1e-4, reg_every=2, batch_size=256)
    engine = make_engine("cpu", layout, settings, offsets=[0.1], n_jobs=2)
    engine.table[:] = random.normal(0, 0.3, engine.table.shape)
    engine.state[:] = 1e-6
    engine.run(codes, None, y, None)
    engine.set_means(np.ones(layout.n_rows))
    return {"epoch: table": np.array(engine.table), "epoch: scores": engine.scores(codes, None)}


def digest(array: np.ndarray) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


def elsewhere(
    names: list[str], out: Path | None = None, *, n: int = N_ROWS, **environment: str
) -> dict[str, str]:
    """Checksums by name from a new process with another environment."""
    command = [sys.executable, __file__, ",".join(names), str(n), *([str(out)] if out else [])]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main(names: str, n: str, out: str | None = None) -> None:
    warnings.simplefilter("ignore")
    found: dict[str, np.ndarray] = {}
    for name in names.split(","):
        found |= epoch(int(n)) if name == "epoch" else arrays_of(name, n=int(n))
    if out:
        np.savez(out, **found)
    print(json.dumps({name: digest(array) for name, array in found.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
