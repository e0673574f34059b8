"""An epoch of our FM and FFM beside the same as torch modules with sparse gradients, on the CPU.

    make bench-baselines

Writes benchmarks/results/baselines.json. Both take the same batches of the bundled flights, in
turns; the ratio is the median over rounds.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from statistics import median

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as logistic

from benchmarks import peers
from benchmarks.record import save
from fieldwise import FieldEncoder, Layout, load_flights
from fieldwise.baselines import FFM, FM, BaselineEngine
from fieldwise.engines import StepSettings

BATCH, ROUNDS = 2048, 9
KINDS = {"FM": (FM, peers.FM, 20), "FFM": (FFM, peers.FFM, 4)}


def our_epoch(engine: BaselineEngine, codes: np.ndarray, y: np.ndarray) -> float:
    begun = time.perf_counter()
    engine.run(codes, None, y, None)
    return time.perf_counter() - begun


def their_epoch(
    model: torch.nn.Module, optimiser: torch.optim.Optimizer, rows: torch.Tensor, y: torch.Tensor
) -> float:
    begun = time.perf_counter()
    for low in range(0, len(rows), BATCH):
        z, _ = model(rows[low : low + BATCH])
        optimiser.zero_grad()
        logistic(z, y[low : low + BATCH]).backward()
        optimiser.step()
    return time.perf_counter() - begun


def main() -> None:
    warnings.filterwarnings("ignore", "Sparse invariant checks")
    frame = load_flights()
    encoder = FieldEncoder()
    codes = encoder.fit_transform(frame.drop("late"))
    order = np.random.default_rng(0).permutation(len(codes))
    codes, y = codes[order], frame["late"].to_numpy().astype(float)[order][:, None]
    layout = Layout.of(encoder.vocabulary_.sizes, rank=0)
    rows = torch.from_numpy(layout.rows(codes).astype(np.int64))
    target = torch.from_numpy(y[:, 0].astype(np.float32))
    figures = {}
    for name, (ours, theirs, rank) in KINDS.items():
        steps = StepSettings(learning_rate=0.1, weight_decay=0.0, batch_size=BATCH)
        engine = BaselineEngine(layout, steps, make=partial(ours, rank=rank))
        engine.initialise(0, 0.02)
        engine.state.fill_(1e-6)
        model = theirs(layout.n_rows, layout.n_fields, rank)
        optimiser = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=1e-6)
        seconds = [
            (our_epoch(engine, codes, y), their_epoch(model, optimiser, rows, target))
            for _ in range(ROUNDS)
        ]
        figures[name] = {
            "rank": rank,
            "seconds": median(mine for mine, _ in seconds),
            "torch_sparse_seconds": median(its for _, its in seconds),
            "times_as_fast": median(its / mine for mine, its in seconds),
            "rounds": seconds,
        }
        print(f"{name}: {figures[name]['times_as_fast']:.2f} times as fast", flush=True)
    body = {"rows": len(codes), "batch": BATCH, "epochs": figures}
    print(f"written: {save('baselines', 'make bench-baselines', body)}")


if __name__ == "__main__":
    main()
