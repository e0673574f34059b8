"""Files of every format that was ever written, kept as they are: they load for ever and mean the
same, and those of a newer format are refused. `golden/make.py` says how they were made."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fieldwise import FieldwiseModel, Store
from fieldwise.errors import FieldwiseError
from fieldwise.fitting import fit_store
from fieldwise.layout import Layout
from fieldwise.train import Running
from fieldwise.updating.versions import rollback, versions
from golden.make import SETTINGS, about, from_shards

GOLDEN = Path(__file__).parent / "golden"
MODELS = sorted(path.name for path in GOLDEN.glob("model-*") if path.is_dir())
CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # float32, and another processor may round otherwise
HEADERS = {"model": "model.json", "store": "header.json", "checkpoint": "checkpoint.json"}


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found


def check(model: FieldwiseModel, said: dict[str, Any]) -> None:
    """That a model says of the rows what it said when it was written."""
    rows = said["rows"]
    z = [model.decision_function(row) for row in rows]
    np.testing.assert_allclose(np.array(z), said["scores"], **CLOSE)
    is_class = model.objective.heads[0].is_class
    predict = model.predict_proba if is_class else model.predict
    np.testing.assert_allclose([predict(row) for row in rows], said["predictions"], **CLOSE)
    frame = pl.DataFrame(rows)
    frame = frame.with_columns(pl.col(c).str.to_datetime() for c in frame.columns if c == "when")
    np.testing.assert_allclose(model.decision_function(frame), np.array(z)[:, 0], **CLOSE)
    if "shapley" in said:
        found = model.explain(frame)
        np.testing.assert_allclose(found.shapley, said["shapley"], **CLOSE)
        np.testing.assert_allclose(found.fields, said["fields"], **CLOSE)
    if "importance" in said:
        assert model.importance() == pytest.approx(said["importance"], rel=1e-6, abs=1e-9)


def test_there_are_files_of_every_format_of_models() -> None:
    formats = {json.loads((GOLDEN / m / "model.json").read_text())["format"] for m in MODELS}
    assert formats == {1, 2}
    parts = {file.name for m in MODELS for file in (GOLDEN / m).iterdir()}
    assert parts >= {"moments.safetensors", "crosses.parquet", "boosted.json"}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_what_it_said(name: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*never seen")
        check(FieldwiseModel.load(GOLDEN / name), expected(name))


def test_a_model_that_is_loaded_and_saved_is_the_same_file(tmp_path: Path) -> None:
    for name in MODELS:
        saved = FieldwiseModel.load(GOLDEN / name).save(tmp_path / name)
        for file in (GOLDEN / name).glob("*.safetensors"):
            assert (saved / file.name).read_bytes() == file.read_bytes()


def test_versions_are_listed_and_put_back(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "versions-1", tmp_path / "v")
    said = expected("versions-1")
    kept = versions(tmp_path / "v" / "m")
    assert [version.number for version in kept] == ["0001", None]
    check(FieldwiseModel.load(tmp_path / "v" / "m"), said["seed 2"])
    rollback(tmp_path / "v" / "m")
    check(FieldwiseModel.load(tmp_path / "v" / "m"), said["seed 1"])


def test_a_store_holds_what_it_held() -> None:
    said, store = expected("store-1"), Store(GOLDEN / "store-1")
    assert store.n_rows == said.pop("n_rows")
    found = store.read(0, 40)
    assert set(found) == set(said)
    for name, rows in said.items():
        assert found[name].tolist() == rows, name
    store.verify()


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "checkpoint-1", tmp_path / "c")
    epochs: list[int] = []
    running = Running(
        checkpoint=tmp_path / "c",
        resume=True,
        device="cpu",
        show=False,
        callbacks=[lambda record: epochs.append(record["epoch"])],
    )
    model = fit_store(
        Store(GOLDEN / "store-1"), running=running, settings=SETTINGS, rank=2, validation=0.2
    )
    assert epochs == [2, 3]  # the first was over
    np.testing.assert_allclose(model.table, expected("checkpoint-1")["table"], rtol=1e-5, atol=1e-6)


def test_the_checkpoint_of_many_workers_is_read_by_any_number() -> None:
    """Two wrote it; one or three read the same table, each its own columns."""
    folder, said = GOLDEN / "checkpoint-1-sharded", expected("checkpoint-1-sharded")
    assert len(json.loads((folder / "checkpoint.json").read_text())["shards"]) == 2
    sizes, ranks = about(folder)
    fields = list(range(len(sizes)))
    layout = Layout(tuple(sizes), tuple(ranks))
    whole = from_shards(folder, [fields], 0)
    for name in ("table", "state"):
        assert whole[name].tolist() == said[name]
    for k, share in enumerate(shares := [fields[:1], fields[1:4], fields[4:]]):
        found = from_shards(folder, shares, k)["table"]
        mine = [t for t in range(layout.n_columns) if layout.owner[t] in share]
        assert found[:, : len(mine)].tolist() == np.array(said["table"])[:, mine].tolist()


@pytest.mark.parametrize(("name", "what"), [
    ("model-1-plain", "model"), ("store-1", "store"), ("checkpoint-1", "checkpoint")
])  # fmt: skip
def test_a_newer_format_is_refused(name: str, what: str, tmp_path: Path) -> None:
    """Whatever else its header holds: nobody can know."""
    shutil.copytree(GOLDEN / name, tmp_path / "new")
    header = tmp_path / "new" / HEADERS[what]
    body = {"format": 99, "checksum": 1, "something": "else"}
    header.write_text(json.dumps(body))
    with pytest.raises(FieldwiseError, match=f"the {what} is of format 99.*: upgrade fieldwise"):
        if what == "model":
            FieldwiseModel.load(tmp_path / "new")
        elif what == "store":
            Store(tmp_path / "new")
        else:
            running = Running(checkpoint=tmp_path / "new", resume=True, device="cpu", show=False)
            fit_store(Store(GOLDEN / "store-1"), running=running, settings=SETTINGS, rank=2)


def test_golden_files_are_never_made_anew(tmp_path: Path) -> None:
    before = zlib.crc32((GOLDEN / "store-1" / "header.json").read_bytes())
    done = subprocess.run(
        [sys.executable, str(GOLDEN / "make.py"), "store-1"],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "kept as they were released" in done.stderr
    assert zlib.crc32((GOLDEN / "store-1" / "header.json").read_bytes()) == before
