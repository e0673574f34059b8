"""Accuracy beside the usual models: logloss, AUC and time on real tables and on a planted one.

    make bench-accuracy

Writes benchmarks/results/accuracy.json. The estimator runs with its defaults; every other model is
the best of a small grid on the validation rows. The test rows are read once, by the chosen ones.
Real tables lie in shared/data beside the project and are left out where absent.
"""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from benchmarks.peers import FFM, FM, LR, OneTable, Peer, fit_lightgbm, fit_torch, logloss
from benchmarks.record import save
from fieldwise import FieldEncoder, FieldwiseClassifier, Layout, synthetic
from fieldwise.data import Batches, Synthetic
from fieldwise.data.shuffle import Rows
from fieldwise.engines import StepSettings
from fieldwise.engines.cpu import CpuEngine
from fieldwise.losses import sigmoid
from fieldwise.maths import importance
from fieldwise.train import initialise

FOLDER = Path(__file__).parents[2] / "shared" / "data"
LEAKS = ("time_hour", "arr_delay", "dep_delay", "air_time", "sched_arr_time", "distance")
PLANTED_SIZES = (200, 200, 200, 200, 200, 200)
PLANTED_ROWS = (400_000, 2_000_000)

# Picked from a few more on the validation rows of flights and frappe.
GRIDS: dict[str, tuple[dict[str, Any], ...]] = {
    "LR": ({"lr": 0.1}, {"lr": 0.3}),
    "FM": (
        {"rank": 16, "lr": 0.1, "decay": 1e-5},
        {"rank": 32, "lr": 0.05, "decay": 1e-4},
        {"rank": 16, "lr": 0.02, "decay": 1e-5},
    ),
    "FFM": ({"rank": 4, "lr": 0.1, "decay": 1e-4}, {"rank": 8, "lr": 0.1, "decay": 1e-5}),
    "LightGBM": (
        {"num_leaves": 63, "learning_rate": 0.1},
        {"num_leaves": 255, "learning_rate": 0.1, "min_data_in_leaf": 50, "cat_smooth": 30},
    ),
}


@dataclass
class Table:
    """Train, validation and test rows, each with a column `label`."""

    name: str
    parts: tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]
    note: str = ""
    planted: Synthetic | None = None
    chance: np.ndarray = field(default_factory=lambda: np.empty(0))  # planted, of the test rows

    def split(self, k: int) -> tuple[pl.DataFrame, np.ndarray]:
        return self.parts[k].drop("label"), self.parts[k]["label"].to_numpy()


def tables() -> Iterator[Table]:
    if (FOLDER / "flights").exists():
        frame = pl.read_parquet(FOLDER / "flights" / "flights.parquet").drop(LEAKS)
        n = frame.height
        cut = (int(0.8 * n), int(0.9 * n))
        for seed in range(3):
            p = np.random.default_rng(seed).permutation(n)
            parts = (frame[p[: cut[0]]], frame[p[cut[0] : cut[1]]], frame[p[cut[1] :]])
            name = f"flights_{seed}" if seed else "flights"
            yield Table(name, parts, f"random 80/10/10 split, seed {seed}")
    if (FOLDER / "frappe").exists():
        names = ("train", "valid", "test")
        read = [pl.read_parquet(FOLDER / "frappe" / f"{name}.parquet") for name in names]
        parts = tuple(frame.drop("resampled_item", strict=False) for frame in read)
        yield Table("frappe", parts, "reconstructed train negatives")
    for name in ("flights", "frappe"):
        if not (FOLDER / name).exists():
            print(f"{name}: left out, shared/data/{name} is not beside the project", flush=True)
    for n_rows in PLANTED_ROWS:
        yield planted_table(n_rows)


def planted_table(n_rows: int) -> Table:
    """Fields of one size, so that the order of importance is that of the planted strengths."""
    drawn = synthetic(PLANTED_SIZES, n_rows, seed=0)
    codes, labels, chance = map(np.concatenate, zip(*drawn.blocks(), strict=True))
    # As text, or the larger fields might be taken for numbers.
    columns = {f"f{j}": pl.Series(codes[:, j]).cast(pl.String) for j in range(codes.shape[1])}
    frame = pl.DataFrame({"label": labels.astype(np.int8), **columns})
    low, high = int(0.8 * n_rows), int(0.9 * n_rows)
    parts = (frame[:low], frame[low:high], frame[high:])
    note = "drawn from a field-wise model, 80/10/10 by position"
    return Table(f"planted_{n_rows}", parts, note, drawn, chance[high:])


def judged(chance: np.ndarray, y: np.ndarray) -> dict[str, float]:
    return {"logloss": logloss(chance, y), "auc": float(roc_auc_score(y, chance))}


def say(name: str, found: dict[str, Any]) -> None:
    print(
        f"  {name}: logloss {found['logloss']:.4f}, AUC {found['auc']:.4f}, "
        f"{found['seconds']:.1f} s, {found['epochs']} epochs",
        flush=True,
    )


def ours(table: Table) -> dict[str, Any]:
    """The estimator with its defaults, from raw rows."""
    X, y = table.split(0)
    started = time.perf_counter()
    model = FieldwiseClassifier(random_state=0).fit(X, y, eval_set=table.split(1))
    seconds = time.perf_counter() - started
    chosen = sum(epoch["seconds"] for epoch in model.history_)
    X, y = table.split(2)
    found: dict[str, Any] = judged(model.predict_proba(X)[:, 1], y)
    found |= {"seconds": seconds, "epochs": len(model.history_), "settings": "defaults"}
    found["training_seconds_of_the_chosen_rate"] = chosen
    found["learning_rate"] = model.history_[0]["learning_rate"]
    found["validation_logloss"] = min(epoch["logloss"] for epoch in model.history_)
    if table.planted is not None:
        found["importance"] = recovered(model, table.planted)
    return found


def recovered(model: FieldwiseClassifier, drawn: Synthetic) -> dict[str, Any]:
    """The planted importance of every field beside the learned one."""
    planted = importance(drawn.table, drawn.layout)
    learned = importance(model.model_.table, model.model_.layout)
    return {
        "planted": planted.tolist(),
        "learned": learned.tolist(),
        "rank_correlation": float(spearmanr(planted, learned).statistic),
    }


def best_of(fits: list[Callable[[], Peer]]) -> tuple[Peer, float]:
    """The best on the validation rows, and the seconds of the whole grid."""
    fitted = [fit() for fit in fits]
    best = min(fitted, key=lambda peer: peer.validation_logloss)
    return best, sum(peer.seconds for peer in fitted)


def peers(table: Table) -> dict[str, dict[str, Any]]:
    started = time.perf_counter()
    X, y = table.split(0)
    encoder = FieldEncoder(unseen="rare")
    train = (encoder.fit_transform(X), y)
    judges = [(encoder.transform(X), y) for X, y in (table.split(1), table.split(2))]
    encoding = time.perf_counter() - started
    sizes = encoder.vocabulary_.sizes
    out = {}
    for name, grid in GRIDS.items():
        if name == "LightGBM":
            if importlib.util.find_spec("lightgbm") is None:
                print("  LightGBM: left out, it is not installed", flush=True)
                continue
            fits = [partial(fit_lightgbm, train, judges[0], **settings) for settings in grid]
        else:
            kind = {"LR": LR, "FM": FM, "FFM": FFM}[name]
            fits = [partial(fit_torch, kind, sizes, train, judges[0], **s) for s in grid]
        best, seconds = best_of(fits)
        out[name] = {
            **judged(best.predict(judges[1][0]), judges[1][1]),
            "seconds": encoding + best.seconds,
            "grid_seconds": encoding + seconds,
            "epochs": best.epochs,
            "settings": best.settings,
            "validation_logloss": best.validation_logloss,
        }
        say(name, out[name])
    return out


def measure(table: Table) -> dict[str, Any]:
    print(f"{table.name} ({table.note}):", flush=True)
    found = ours(table)
    say("fieldwise", found)
    figures: dict[str, Any] = {
        "note": table.note,
        "rows": [part.height for part in table.parts],
        "fields": table.parts[0].width - 1,
        "models": {"fieldwise": found},
    }
    if table.planted is not None:
        y = table.split(2)[1]
        figures["best_reachable"] = judged(table.chance, y)
        order = found["importance"]["rank_correlation"]
        print(f"  best reachable logloss {figures['best_reachable']['logloss']:.4f}")
        print(f"  order of importance, planted and learned: rank correlation {order:.2f}")
    figures["models"] |= peers(table)
    if table.name == "flights":
        figures["decay"] = decay_of_rows_present(table)
    return figures


def decay_of_rows_present(table: Table) -> list[dict[str, float]]:
    """Decay of the rows in a batch (ours) beside decay of the whole table (the published code's):
    the best validation logloss of four epochs, everything else the same.
    """
    encoder = FieldEncoder()
    train_rows, judge = table.split(0), table.split(1)
    rows = Rows(codes=encoder.fit_transform(train_rows[0]), target=train_rows[1])
    codes, y = encoder.transform(judge[0]), judge[1]
    layout = Layout.of(encoder.vocabulary_.sizes, rank=8)
    out = []
    for decay in (1e-6, 1e-5, 1e-4):
        best = {
            kind: min(losses(layout, rows, decay, encoder, codes, y))
            for kind, losses in (("present", present_decay), ("whole", whole_decay))
        }
        out.append({"weight_decay": decay, **best})
        print(f"  decay {decay:g}: of rows present {best['present']:.4f}, ", end="")
        print(f"of the whole table {best['whole']:.4f}", flush=True)
    return out


def present_decay(
    layout: Layout, rows: Rows, decay: float, encoder: FieldEncoder, codes: np.ndarray, y: Any
) -> Iterator[float]:
    engine = CpuEngine(layout, StepSettings(learning_rate=0.05, weight_decay=decay, penalty=0.0))
    initialise(engine.table, seed=0, scale=0.02)
    engine.state[:] = 1e-6
    batches = Batches(rows, 2048, seed=0)
    for _ in range(4):
        for batch in batches:
            engine.run(batch["codes"], None, batch["target"], None)
        engine.set_means(encoder.vocabulary_.counts())
        yield logloss(sigmoid(engine.scores(codes, None)[:, 0]), y)


def whole_decay(
    layout: Layout, rows: Rows, decay: float, encoder: FieldEncoder, codes: np.ndarray, y: Any
) -> Iterator[float]:
    table = np.empty((layout.n_rows, layout.width), np.float32)
    initialise(table, seed=0, scale=0.02)
    model = OneTable(layout, table, sparse=False)
    optimiser = torch.optim.Adagrad(
        model.parameters(), 0.05, weight_decay=decay, initial_accumulator_value=1e-6
    )
    judge = CpuEngine(layout, StepSettings())
    batches = Batches(rows, 2048, seed=0)
    for _ in range(4):
        for batch in batches:
            optimiser.zero_grad()
            z = model(torch.from_numpy(layout.rows(batch["codes"])))
            target = torch.from_numpy(batch["target"][:, 0].astype(np.float32))
            torch.nn.functional.binary_cross_entropy_with_logits(z, target).backward()
            optimiser.step()
        judge.table[:] = model.table.weight.detach().numpy()
        judge.set_means(encoder.vocabulary_.counts())
        yield logloss(sigmoid(judge.scores(codes, None)[:, 0]), y)


def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    warnings.filterwarnings("ignore", "Sparse invariant checks")  # torch's, at every first step
    few = pl.DataFrame({"a": ["x", "y"] * 50, "b": ["u", "u", "v", "v"] * 25})
    FieldwiseClassifier(epochs=1).fit(few, [0, 1] * 50)  # compiles the kernels
    figures = {
        "task": "fit on train, stop early on validation, one reading of the test rows",
        "seconds": "encoding and fit of the chosen setting; grid_seconds: of all settings",
        "epochs": "epochs run; trees for LightGBM",
        "load_average_before": os.getloadavg()[0],
        "tables": {table.name: measure(table) for table in tables()},
    }
    print(f"written: {save('accuracy', 'make bench-accuracy', figures)}")


if __name__ == "__main__":
    main()
