"""How the golden files came about, and how those of a new format are made.

    PYTHONPATH=src:tests python tests/golden/make.py NAME [NAME ...]

Everything is learned from `serving.clicks`, rows drawn from a seed. A file that was once released
must load for ever: what is there is never made anew, and a new format gets new names.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from fieldwise import FieldwiseClassifier, FieldwiseModel, Store, boosted, encode, update
from fieldwise.compress import compress
from fieldwise.distributed.shards import ShardedDisk
from fieldwise.fitting import fit_store
from fieldwise.layout import Layout
from fieldwise.train import Running, TrainSettings
from fieldwise.updating.versions import being_changed, publish
from serving import clicks, fitted, rows_of
from workers import launched

HERE = Path(__file__).parent
SETTINGS = TrainSettings(
    epochs=3, batch_size=64, learning_rate=0.1, patience=3, averages=2, reg_every=5
)


def said(model: FieldwiseModel) -> dict[str, Any]:
    """What a model says of some raw rows, which are kept beside it."""
    rows = rows_of(model, 6)
    out = {"rows": rows, "scores": [model.decision_function(row).tolist() for row in rows]}
    # JSON writes a float's shortest text that reads back as its bits.
    is_class = model.objective.heads[0].is_class
    predict = model.predict_proba if is_class else model.predict
    out["predictions"] = [predict(row).tolist() for row in rows]
    if not model.objective.is_vote and model.layout.component == "linear":
        found = model.explain(table_of(rows))
        out |= {"shapley": found.shapley.tolist(), "fields": found.fields.tolist()}
    if model.layout.component == "linear":
        out["importance"] = model.importance()
    return out


def table_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    frame = pl.DataFrame(rows)
    return frame.with_columns(pl.col(c).str.to_datetime() for c in frame.columns if c == "when")


def model(make: Callable[[], FieldwiseModel]) -> Callable[[Path], dict[str, Any]]:
    def write(folder: Path) -> dict[str, Any]:
        make().save(folder)
        return said(FieldwiseModel.load(folder))

    return write


def packed() -> FieldwiseModel:
    whole = fitted("plain")
    found = compress(whole, clicks(1, 400).rename({"click": "y"}), max_loss=0.01).model
    assert found.compression, "it was not compressed"
    return found


def ensemble() -> FieldwiseModel:
    frame = clicks(0, 400)
    given = FieldwiseClassifier(
        epochs=1, rank=2, learning_rate=0.1, combine="weighted", n_members=2, bagging=True
    )
    X = frame.select("site", "hour", "price", "age", "mobile", "when", "tags")
    return given.fit(X, frame["click"]).model_


def machine() -> FieldwiseModel:
    frame = clicks(0, 300)
    given = FieldwiseClassifier(component="fm", epochs=1, rank=2, learning_rate=0.1)
    X = frame.select("site", "hour", "price", "age", "mobile", "when", "tags")
    return given.fit(X, frame["click"]).model_


def crossed(preset: str) -> FieldwiseModel:
    """Small, as a released file stays for good."""
    frame = clicks(0, 300)
    boosted.MEMBERS, boosted.MOST_TREES = 1, 10
    given = FieldwiseClassifier(
        preset=preset, crosses=[("site", "hour")], epochs=2, rank=2, learning_rate=0.1, n_bins=4
    )
    return given.fit(frame.select("site", "hour", "price"), frame["click"]).model_


def updated() -> FieldwiseModel:
    return update(fitted("plain"), clicks(2, 300).drop("level", "amount").rename({"click": "y"}))


def versions(folder: Path) -> dict[str, Any]:
    """A model, the one it took the place of, and what both say."""
    frame = clicks(0, 300)
    out = {}
    for seed in (1, 2):
        given = FieldwiseClassifier(epochs=1, rank=1, learning_rate=0.1, random_state=seed)
        found = given.fit(frame.select("site", "mobile", "when"), frame["click"]).model_
        with being_changed(folder / "m") as real:
            publish(found, real)
        out[f"seed {seed}"] = said(found)
    return out


def store(folder: Path) -> dict[str, Any]:
    frame = clicks(0, 200).drop("level", "amount").with_columns(weight=pl.lit(0.5))
    made = encode(frame, folder, target="click", weight="weight", kinds={"age": "linear"})
    rows = made.read(0, 40)
    return {"n_rows": made.n_rows, **{name: array.tolist() for name, array in rows.items()}}


class Enough(BaseException):
    """Ends a run at the end of its second epoch, as a kill would."""


def stop(record: dict[str, Any]) -> None:
    if record["epoch"] == 2:
        raise Enough


def checkpoint(folder: Path) -> dict[str, Any]:
    """A run over the golden store that was ended in its second epoch, and the table it comes to."""
    data = Store(HERE / "store-1")
    given = {"settings": SETTINGS, "rank": 2, "validation": 0.2}
    running = Running(checkpoint=folder, checkpoint_minutes=0, device="cpu", show=False)
    with suppress(Enough):
        fit_store(data, running=replace(running, callbacks=[stop]), **given)
    whole = fit_store(data, running=Running(device="cpu", show=False), **given)
    return {"table": whole.table.tolist()}


def sharded(folder: Path) -> dict[str, Any]:
    """The checkpoint of two workers, one of which was killed, and the whole table it holds."""
    out = folder.with_name("killed")
    case = {
        "data": str(HERE / "store-1"),
        "out": str(out),
        "rank": 2,
        "validation": 0.2,
        "settings": {"epochs": 3, "batch_size": 64, "learning_rate": 0.1, "averages": 1},
    }
    launched(2, {"cases": [case], "die": [1, 4, str(folder.with_name("once"))]}, expect=None)
    left = out.with_name(".killed.work")
    shutil.move(left / "checkpoint", folder)
    shutil.rmtree(left)
    folder.with_name("once").unlink()
    arrays = from_shards(folder, [list(range(len(about(folder)[0])))], 0)
    return {"table": arrays["table"].tolist(), "state": arrays["state"].tolist()}


def about(folder: Path) -> tuple[list[int], list[int]]:
    """The sizes and ranks of the run that a checkpoint is of."""
    identity = json.loads((folder / "checkpoint.json").read_text())["identity"]
    return identity["sizes"], identity["ranks"]


def from_shards(folder: Path, shares: list[list[int]], k: int) -> dict[str, np.ndarray]:
    """What one of so many workers reads, each with some fields; the others need not be there."""
    peers: Any = SimpleNamespace(
        told=lambda x: x, each=lambda work: [work()], grid=SimpleNamespace(shard=k, rank=k)
    )
    sizes, ranks = about(folder)
    found = ShardedDisk(peers, Layout(tuple(sizes), tuple(ranks)), shares).load(folder)
    assert found is not None
    return found[1]


FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    **{
        f"model-1-{kind.replace(' ', '-')}": model(lambda kind=kind: fitted(kind))
        for kind in ("plain", "rare", "three", "number", "vote", "vote of three")
    },
    "model-1-glass": model(lambda: crossed("glass")),
    "model-1-best": model(lambda: crossed("best")),
    "model-1-ensemble": model(ensemble),
    "model-1-fm": model(machine),
    "model-1-updated": model(updated),
    "model-2-packed": model(packed),
    "versions-1": versions,
    "store-1": store,
    "checkpoint-1": checkpoint,
    "checkpoint-1-sharded": sharded,
}


def main(names: list[str]) -> None:
    for name in names:
        if name not in FILES:
            raise SystemExit(f"{name} is not one of {', '.join(FILES)}")
        if (HERE / name).exists() or (HERE / f"{name}.json").exists():
            raise SystemExit(f"{name} is there; golden files are kept as they were released")
        found = FILES[name](HERE / name)
        (HERE / f"{name}.json").write_text(json.dumps(found, indent=None) + "\n")
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
