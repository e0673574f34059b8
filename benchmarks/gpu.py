"""The GPU engine's figures: a step beside torch's, its stages beside what their bytes need, a whole
run of Criteo's size, streaming, half precision, and the same tables on CPU and GPU.

    python -m benchmarks.gpu prepare FOLDER     # where polars is: stores of two tables
    python -m benchmarks.gpu FOLDER             # on a machine with a GPU: torch, Triton and NumPy

Writes benchmarks/results/gpu.json. Codes are drawn Zipf(1.05) a field, as in the paper's shapes.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import save
from fieldwise.data.planted import AVAZU_SIZES, CRITEO_SIZES
from fieldwise.engines import StepSettings, fill
from fieldwise.layout import Layout

BATCH = 2048
CHUNK = 64 * BATCH
CRITEO_ROWS = 36_672_493  # training rows in the paper
STREAM_ROWS = 12_000_000
SHAPES = {
    "criteo": (
        Layout.of(CRITEO_SIZES, rank_base=1.6),
        {"learning_rate": 0.01, "weight_decay": 1e-6},
    ),
    "avazu": (Layout.of(AVAZU_SIZES, rank=8), {"learning_rate": 0.1, "weight_decay": 1e-8}),
}


def prepare(folder: Path) -> None:
    """Stores that can be read with NumPy alone."""
    import polars as pl

    from fieldwise import synthetic
    from fieldwise.data import encode

    source = Path(__file__).parents[2] / "shared" / "data" / "frappe"
    frames = [pl.read_parquet(source / f"{name}.parquet") for name in ("train", "valid")]
    whole = pl.concat([f.drop("resampled_item", strict=False) for f in frames])
    encode(whole, folder / "frappe", target="label", kinds={"label": "category"}, overwrite=True)
    synthetic((200,) * 6, 400_000, seed=0).to_store(folder / "planted", overwrite=True)


def drawn(layout: Layout, n: int, seed: int = 0) -> tuple[Any, Any]:
    """Codes and labels on the device, labels from a score that is a sum over fields."""
    import torch

    random = torch.Generator("cuda").manual_seed(seed)
    z = torch.full((n,), -1.0, device="cuda")
    codes = torch.empty((n, layout.n_fields), dtype=torch.int32, device="cuda")
    for j, d in enumerate(layout.sizes):
        chance = torch.arange(1, d + 1, device="cuda", dtype=torch.float64) ** -1.05
        until = (chance.cumsum(0) / chance.sum()).float()
        found = torch.searchsorted(until, torch.rand(n, generator=random, device="cuda"))
        codes[:, j] = found.clamp_(max=d - 1)
        worth = torch.randn(d, generator=torch.Generator("cuda").manual_seed(j), device="cuda")
        z += 0.2 * worth[codes[:, j].long()]
    y = torch.rand(n, generator=random, device="cuda") < torch.sigmoid(z)
    return codes, y.float()[:, None]


def timed(work: Callable[[], Any], times: int = 15) -> float:
    """Microseconds by the device's own clock, the median of several."""
    import torch

    work()
    torch.cuda.synchronize()
    out = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        out.append(1000 * begin.elapsed_time(end))
    return statistics.median(out)


def recorded(work: Callable[[int], Any], steps: int) -> float:
    """Microseconds a step, of different batches one after the other in one graph."""
    import torch

    work(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for k in range(steps):
            work(k)
    return timed(graph.replay, 7) / steps


def copy_bandwidth() -> float:
    """Bytes read and written a second."""
    import torch

    source = torch.ones(1 << 31, dtype=torch.uint8, device="cuda")
    out = torch.empty_like(source)
    return 2 * source.numel() / timed(lambda: out.copy_(source)) * 1e6


def engine_of(name: str, **options: Any) -> Any:
    from fieldwise.engines.gpu import GpuEngine

    layout, rates = SHAPES[name]
    engine = GpuEngine(layout, StepSettings(**rates, penalty=0.0, batch_size=BATCH), **options)
    engine.table.uniform_(-0.02, 0.02)
    fill(engine.state, 1e-6)
    return engine


def our_step(engine: Any, codes: Any, y: Any) -> float:
    """Microseconds, over chunks of different rows."""
    n = len(codes) // CHUNK
    parts = [slice(k * CHUNK, (k + 1) * CHUNK) for k in range(n)]
    for part in parts[:3]:
        engine.run(codes[part], None, y[part], None)  # compiles, records

    def all_of_them() -> None:
        for part in parts:
            engine.run(codes[part], None, y[part], None)

    return timed(all_of_them) / (n * CHUNK // BATCH)


def stages(engine: Any, codes: Any, y: Any, bandwidth: float) -> dict[str, Any]:
    """Microseconds a step of each stage alone, beside the time its bytes need at a copy's speed."""
    import torch

    from fieldwise.engines import _triton, gpu

    steps, n = gpu.GROUP, BATCH
    codes, y = codes[: steps * n], y[: steps * n]
    rows = engine._rows(codes)
    found = engine._sorted(codes, None, steps, n)
    scratch = engine._scratch(n)
    total = torch.full((1,), float(n), device="cuda")
    losses = torch.empty(n, device="cuda")

    def forward(k: int) -> None:
        part = slice(k * n, (k + 1) * n)
        engine._forward(scratch, rows[part], None, y[part], None, total, losses)

    def only(kept: str) -> float:
        class Nothing:
            def __getitem__(self, grid: Any) -> Callable[..., None]:
                return lambda *a, **k: None

        other = "short_runs" if kept == "long_runs" else "long_runs"
        aside = getattr(_triton, other)
        setattr(_triton, other, Nothing())
        try:
            return recorded(lambda k: engine._update(scratch, found, k, None, due=False), steps)
        finally:
            setattr(_triton, other, aside)

    forward(0)
    taken = {
        "sorting": timed(lambda: engine._sorted(codes, None, steps, n), 7) / steps,
        "forward": recorded(forward, steps),
        "short runs alone": only("short_runs"),
        "long runs alone": only("long_runs"),
        "both runs": recorded(lambda k: engine._update(scratch, found, k, None, due=False), steps),
    }
    layout = engine.layout
    row = 4 * engine._stride
    distinct = float(found.n_runs.float().mean())
    gathered = n * layout.n_slots * row
    need = {
        # From memory every distinct row once; the rest is read again from the second cache.
        "forward": distinct * row + 2 * n * row,
        "both runs": 4 * distinct * row + 2 * n * row,
    }
    return {
        "microseconds": taken,
        "distinct_rows": distinct,
        "bytes_gathered": gathered,
        "bytes_from_memory": need,
        "microseconds_for_the_bytes": {k: v / bandwidth * 1e6 for k, v in need.items()},
        "cache_bytes_a_second": gathered / taken["forward"] * 1e6,
    }


def torch_step(name: str, codes: Any, y: Any, *, sparse: bool) -> float:
    """Microseconds of the published algorithm, dense or sparse."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as logistic

    from benchmarks.peers import OneTable

    layout, rates = SHAPES[name]
    model = OneTable(layout, np.zeros((1, 1), np.float32), sparse=sparse)
    weight = torch.empty((layout.n_rows, layout.width), device="cuda").uniform_(-0.02, 0.02)
    model.table = torch.nn.Embedding.from_pretrained(weight, freeze=False, sparse=sparse)
    model.owner, model.columns = model.owner.cuda(), model.columns.cuda()
    optimiser = torch.optim.Adagrad(
        model.parameters(),
        lr=rates["learning_rate"],
        weight_decay=0.0 if sparse else rates["weight_decay"],
        initial_accumulator_value=1e-6,
        eps=1e-10,
    )
    offsets = torch.tensor(layout.offsets[:-1], device="cuda")
    batches = [
        ((codes[k : k + BATCH] + offsets).long(), y[k : k + BATCH, 0])
        for k in range(0, 8 * BATCH, BATCH)
    ]

    def step(k: int) -> None:
        optimiser.zero_grad()
        logistic(model(batches[k][0]), batches[k][1]).backward()
        optimiser.step()

    for k in range(3):
        step(k)
    return statistics.median(timed(lambda k=k: step(k), 3) for k in range(3, 8))


def steps_of(name: str, bandwidth: float) -> dict[str, Any]:
    import torch

    codes, y = drawn(SHAPES[name][0], 8 * CHUNK)
    out: dict[str, Any] = {"parameters": SHAPES[name][0].n_parameters}
    engine = engine_of(name)
    out["fieldwise"] = our_step(engine, codes, y)
    out["samples_per_second"] = BATCH / out["fieldwise"] * 1e6
    out["stages"] = stages(engine, codes, y, bandwidth)
    out["same_bits"] = same_bits(name, codes, y)
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    half = engine_of(name, half=True)
    out["half"] = our_step(half, codes, y)
    del half
    gc.collect()
    torch.cuda.empty_cache()
    for peer, sparse in (("published", False), ("torch_sparse", True)):
        out[peer] = torch_step(name, codes, y, sparse=sparse)
        out[f"times_{peer}"] = out[peer] / out["fieldwise"]
        gc.collect()
        torch.cuda.empty_cache()
    print(name, {k: v for k, v in out.items() if k != "stages"}, flush=True)
    print(name, out["stages"], flush=True)
    return out


def same_bits(name: str, codes: Any, y: Any) -> bool:
    import torch

    found = []
    for _ in range(2):
        torch.manual_seed(0)
        engine = engine_of(name)
        for k in range(3):
            part = slice(k * CHUNK, (k + 1) * CHUNK)
            engine.run(codes[part], None, y[part], None)
        found.append(engine.table.clone())
    return bool(torch.equal(*found))


def problem_of(n: int, held_out: float) -> Any:
    """Criteo's shape in host memory, as a store that is in the page cache would be."""
    from fieldwise.data.shuffle import Rows
    from fieldwise.problem import Problem

    layout, _ = SHAPES["criteo"]
    codes = np.empty((n, layout.n_fields), np.int32)
    y = np.empty((n, 1), np.float32)
    counts = np.zeros(layout.n_rows, np.int64)
    for k, low in enumerate(range(0, n, 1 << 22)):
        part, label = drawn(layout, min(1 << 22, n - low), seed=k)
        codes[low : low + len(part)] = part.cpu().numpy()
        y[low : low + len(part)] = label.cpu().numpy()
        for j in range(layout.n_fields):
            counts[layout.own(j)] += (
                part[:, j].long().bincount(minlength=layout.sizes[j]).cpu().numpy()
            )
    judge = np.random.default_rng(0).random(n) < held_out
    return Problem(
        layout=layout, rows=Rows(codes=codes, target=y), counts=counts, only=~judge, held_out=judge
    )


def whole_run() -> dict[str, Any]:
    """Load, three epochs, validation after each."""
    import torch

    from fieldwise.train import Running, TrainSettings, train

    problem = problem_of(CRITEO_ROWS + 1_000_000, 1_000_000 / (CRITEO_ROWS + 1_000_000))
    settings = TrainSettings(
        learning_rate=0.01, weight_decay=1e-6, penalty=1e-3, reg_every=1000, batch_size=BATCH,
        epochs=3, patience=3, averages=1,
    )  # fmt: skip
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    seen: list[float] = []
    started = time.perf_counter()
    fit = train(
        problem,
        settings,
        Running(device="cuda", callbacks=[lambda record: seen.append(time.perf_counter())]),
    )
    seconds = time.perf_counter() - started
    epochs = [h["seconds"] for h in fit.history]
    out = {
        "rows": int(problem.only.sum()),
        "seconds": seconds,
        "epoch_seconds": epochs,
        "until_the_first_epoch_ends": seen[0] - started,
        "validation_logloss": [h["logloss"] for h in fit.history],
        "peak_gpu_gb": torch.cuda.max_memory_allocated() / 1e9,
    }
    print("whole run", out, flush=True)
    return out


def streaming() -> dict[str, Any]:
    """An epoch from host memory, a group at a time, over one with all rows on the device."""
    from fieldwise.train import Running, TrainSettings, train

    problem = problem_of(STREAM_ROWS, 0.01)
    settings = TrainSettings(
        learning_rate=0.01, weight_decay=1e-6, penalty=0.0, batch_size=BATCH, epochs=3, patience=3,
        averages=1,
    )  # fmt: skip
    seconds = {}
    for name, resident in (("resident", True), ("streamed", False)):
        fit = train(problem, settings, Running(device="cuda", resident=resident))
        seconds[name] = min(h["seconds"] for h in fit.history[1:])
    out = {"rows": STREAM_ROWS, "epoch_seconds": seconds}
    out["times_resident"] = seconds["streamed"] / seconds["resident"]
    print("streaming", out, flush=True)
    return out


def both_engines(folder: Path) -> dict[str, Any]:
    """Validation logloss on the same rows with the same seed, on CPU and GPU."""
    from fieldwise.data.store import Store
    from fieldwise.fitting import fit_store
    from fieldwise.train import Running, TrainSettings

    out: dict[str, Any] = {}
    settings = TrainSettings(learning_rate=0.15, epochs=8, patience=3)
    for name in ("frappe", "planted"):
        store = Store(folder / name)
        kinds: dict[str, dict[str, Any]] = {"gpu": {}, "gpu, half precision": {"half": True}}
        if importlib.util.find_spec("numba") is not None:
            kinds["cpu"] = {}
        found = {}
        for kind, options in kinds.items():
            model = fit_store(
                store,
                settings=replace(settings, **options),
                running=Running(engine=kind[:3]),
                rank=16,
            )
            found[kind] = model.metrics["logloss"]
        found["difference"] = found["gpu"] - found.get("cpu", np.nan)
        found["difference_of_half"] = found["gpu, half precision"] - found["gpu"]
        out[name] = found
        print(name, found, flush=True)
    return out


def main(folder: Path | None) -> None:
    import torch
    import triton

    figures: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "batch": BATCH,
    }
    bandwidth = copy_bandwidth()
    figures["copy_bytes_a_second"] = bandwidth
    print(f"copy: {bandwidth / 1e12:.2f} TB/s", flush=True)
    figures["step_microseconds"] = {name: steps_of(name, bandwidth) for name in SHAPES}
    if folder is not None:
        figures["both_engines"] = both_engines(folder)
    figures["streaming"] = streaming()
    gc.collect()
    torch.cuda.empty_cache()
    figures["whole_run"] = whole_run()
    path = save("gpu", "python -m benchmarks.gpu FOLDER", figures)
    print(f"written: {path}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["prepare"]:
        prepare(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
