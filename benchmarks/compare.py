"""Every method on real tables: what docs/results.md says.

    python -m benchmarks.compare prepare              encode the tables into build/compare
    python -m benchmarks.compare run METHODS DEVICE   tune and fit, with five seeds; may be stopped
    python -m benchmarks.compare results              write docs/results.md and its JSON
    python -m benchmarks.compare time                 `fieldwise compare` on the flights, timed

Real tables lie in shared/data beside the project; none but the flights may be distributed. Each is
cut once, 80/10/10 by a fixed permutation, or comes with its own parts. `run` needs the encoded
tables alone, so that it can go to a machine with a GPU; folders of fits from several machines are
put together by copying them into build/compare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter as clock
from typing import Any

import numpy as np

from benchmarks.record import RESULTS, save
from fieldwise.baselines.methods import METHODS, PAPERS, chosen_methods
from fieldwise.compare.pages import about, cells, headings
from fieldwise.compare.parts import Parts, encoded, parted
from fieldwise.compare.results import Result, results_of
from fieldwise.compare.run import Plan, run_methods
from fieldwise.data.store import Store
from fieldwise.train import Running

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
WORK = ROOT / "build" / "compare"
TRIALS, REPEATS = 3, 5
DROPPED = {
    "flights": ["time_hour", "arr_delay", "dep_delay", "air_time", "sched_arr_time", "distance"],
    "frappe": ["resampled_item"],
    "hotel": ["is_canceled", "reservation_status", "reservation_status_date"],
    "unvotes": ["vote", "short", "unres", "country_code"],
    "access": [],
    "incidents": ["number", "opened_at"],
    "criteo": [],
}
TITLES = {
    "access": "Access: a request that was granted",
    "incidents": "Incidents",
    "hotel": "Hotel: a booking that was cancelled",
    "frappe": "Frappe: the app a user opened, in its context",
    "flights": "Flights: arrived 15 or more minutes late",
    "unvotes": "UN votes: voted yes",
}
# Test AUC and logloss of the BARS benchmark, Frappe_x1.
BARS = {
    "LR": (0.9356, 0.3076), "FM": (0.9671, 0.2065), "FFM": (0.9786, 0.1860),
    "DeepFM": (0.9842, 0.1482), "IPNN": (0.9841, 0.1540), "FinalMLP": (0.9861, 0.1484),
    "FinalNet": (0.9857, 0.1311),
}  # fmt: skip

NOTES = {
    "frappe": "The published figures are those of the BARS benchmark (Frappe_x1), with far larger "
    "searches; the best published there is FinalNet, 0.1311 (AUC 0.9857). Validation and test rows "
    "are the benchmark's own; in the training rows the item of every negative was drawn again by "
    "the original rule. Each positive has two negatives of the same user and context, so methods "
    "that cross fields also read the sampling.\n"
}


def frame_of(name: str) -> Any:
    import polars as pl

    if name == "criteo":  # raw: no header, tabs, empty where missing
        kinds = {"label": pl.Int8, **{f"I{k}": pl.Int64 for k in range(1, 14)}}
        kinds |= {f"C{k}": pl.String for k in range(1, 27)}
        file = DATA / name / "train.txt"
        return pl.read_csv(file, separator="\t", has_header=False, schema=kinds)
    file = "flights" if name == "flights" else "data"
    return pl.read_parquet(DATA / name / f"{file}.parquet").drop(DROPPED[name])


def parts_of(name: str, seed: int = 0) -> list[Any]:
    """Training, validation and test rows; `seed` cuts tables without parts of their own."""
    import polars as pl

    if name == "frappe":
        frames = [pl.read_parquet(DATA / name / f"{k}.parquet") for k in ("train", "valid", "test")]
        return [frame.drop(DROPPED[name], strict=False) for frame in frames]
    frame = frame_of(name)
    n = frame.height
    order = np.random.default_rng(seed).permutation(n)
    return [frame[part] for part in np.split(order, [int(0.8 * n), int(0.9 * n)])]


def prepare() -> None:
    for name in TITLES:
        if not (DATA / name).exists():
            print(f"{name}: left out, it is not beside the project")
            continue
        train, validation, test = parts_of(name)
        folder = WORK / name
        folder.mkdir(parents=True, exist_ok=True)
        others = {"validation": validation, "test": test}
        store, _ = encoded(train, folder, {"target": "label"}, others, show=False)
        print(f"{name}: {store.n_rows:,} rows")


def prepared() -> Iterator[tuple[str, Path, Parts]]:
    for name in TITLES:
        folder = WORK / name
        if (folder / "parts.json").is_file():
            cuts = json.loads((folder / "parts.json").read_text())
            yield name, folder, parted(Store(folder / "store"), cuts, "given", 0.1, 0.1, 0)


def run(methods: str, device: str) -> None:
    for name, folder, parts in prepared():
        minutes = os.environ.get("MINUTES")
        plan = Plan(
            methods=chosen_methods(methods.split(",")),
            trials=TRIALS,
            repeats=REPEATS,
            seed=0,
            time_limit=float(minutes) if minutes else None,
        )

        def say(words: str, name: str = name) -> None:
            print(f"{name}: {words}", flush=True)

        for result in run_methods(parts, folder, plan, Running(device=device), say):
            stems = [fit["scores"].stem for fit in result.fits]
            body = {"status": result.status, "note": result.note, "fits": stems, "on": device}
            (folder / f"{result.method.name}.json").write_text(json.dumps(body))


def gathered(folder: Path) -> Iterator[tuple[Result, str]]:
    """What was run, on whatever machine, in the order of the methods."""
    for name, method in METHODS.items():
        file = folder / f"{name}.json"
        if file.is_file():
            body = json.loads(file.read_text())
            paths = [folder / "fits" / f"{stem}.json" for stem in body["fits"]]
            fits = [{**json.loads(p.read_text()), "scores": p.with_suffix(".npy")} for p in paths]
            yield Result(method, body["status"], body["note"], fits), body["on"]


def results() -> None:
    file = RESULTS / "compare.json"
    tables = json.loads(file.read_text())["tables"] if file.is_file() else {}
    for name, folder, parts in prepared():
        found = list(gathered(folder))
        if not {result.method.name for result, _ in found} >= set(PAPERS):
            print(f"{name}: not all methods were run; it stays as it was")
            continue
        body = results_of([result for result, _ in found], parts, {"data": name, "trials": TRIALS})
        del body["machine"], body["fieldwise"]
        for row, (_, device) in zip(body["methods"], found, strict=True):
            row["device"] = device
            if name == "frappe" and row["name"] in BARS:
                row["published"] = dict(zip(("auc", "logloss"), BARS[row["name"]], strict=True))
        tables[name] = body
    tables = {name: tables[name] for name in TITLES if name in tables}
    figures = {"trials": TRIALS, "seeds": REPEATS, "published_frappe": BARS, "tables": tables}
    print(f"written: {save('compare', 'make bench-compare', figures)}")
    (ROOT / "docs" / "results.md").write_text(page(tables))


def timed() -> None:
    """The command as a person types it: the ten methods of the paper, one seed each."""
    with TemporaryDirectory() as folder:
        table, out = Path(folder) / "flights.parquet", Path(folder) / "compared"
        frame_of("flights").write_parquet(table)
        given = ["--target", "label", "--trials", str(TRIALS), "--repeats", "1"]
        begun = clock()
        command = [sys.executable, "-m", "fieldwise", "compare", str(table), *given]
        subprocess.run([*command, "--out", str(out)], check=True)
        seconds = clock() - begun
        body = json.loads((out / "results.json").read_text())
    figures = {
        "compare_flights_seconds": round(seconds, 1),
        "trials": TRIALS,
        "seeds": 1,
        "rows": body["table"]["rows"],
        "methods": {row["name"]: row["status"] for row in body["methods"]},
    }
    print(f"written: {save('compare_time', 'python -m benchmarks.compare time', figures)}")


def page(tables: dict[str, Any]) -> str:
    """docs/results.md"""
    opening = (Path(__file__).parent / "compare.md").read_text()
    out = [opening.rstrip()]
    for name, body in tables.items():
        plain = {**body, "methods": [{k: v for k, v in row.items() if k != "published"}
                                     for row in body["methods"]]}  # fmt: skip
        out += ["", f"## {TITLES[name]}", "", *(f"{line}\n" for line in about(plain)[:1])]
        out += [NOTES[name]] if name in NOTES else []
        head = headings(plain)
        if name == "frappe":
            head.append("published logloss, AUC")
        out += ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
        good = [row for row in body["methods"] if row["logloss"] is not None]
        top = min(good, key=lambda row: row["logloss"])["name"]
        for row, bare in zip(body["methods"], plain["methods"], strict=True):
            shown = cells(bare, plain)
            if row["device"] == "cuda" and row["logloss"] is not None:
                shown[4] += " (GPU)"
            if name == "frappe":
                said = row.get("published")
                shown.append(f"{said['logloss']:.4f}, {said['auc']:.4f}" if said else "")
            if row["name"] == top:
                shown = [f"**{cell}**" if cell else cell for cell in shown]
            out.append("| " + " | ".join(shown) + " |")
    return "\n".join(out) + "\n"


def main() -> None:
    command, *given = sys.argv[1:] or ["results"]
    {"prepare": prepare, "run": run, "results": results, "time": timed}[command](*given)


if __name__ == "__main__":
    main()
