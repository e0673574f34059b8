"""Versions of a model on disk: kept, listed, put back; whole, whatever is killed and when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from commands import dead_process, run
from fieldwise import FieldwiseClassifier, FieldwiseModel, ModelError, SettingError, files
from fieldwise.files import put_back, replace_folder
from fieldwise.model_folder import model_id
from fieldwise.updating.versions import being_changed, publish, rollback, versions


def table(n: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    site, hour = random.integers(0, 5, n), random.integers(0, 6, n)
    late = random.random(n) < 0.2 + 0.6 * ((site + hour) % 2)
    return pl.DataFrame(
        {"site": [f"s{k}" for k in site], "hour": [f"h{k}" for k in hour], "y": late.astype(int)}
    )


def trained(seed: int) -> FieldwiseModel:
    rows = table(400, 1)
    settings = {"rank": 2, "epochs": 1, "learning_rate": 0.1, "random_state": seed}
    return FieldwiseClassifier(**settings).fit(rows.drop("y"), rows["y"]).model_


@pytest.fixture(scope="module")
def models() -> list[FieldwiseModel]:
    return [trained(seed) for seed in range(8)]


def put(model: FieldwiseModel, path: Path, keep: int = 5) -> str | None:
    with being_changed(path) as real:
        return publish(model, real, keep=keep)


def same(path: Path, model: FieldwiseModel) -> bool:
    return bool(np.array_equal(FieldwiseModel.load(path).rows, model.rows))


def test_what_was_there_is_kept_and_the_oldest_goes(models, tmp_path):
    path = tmp_path / "m"
    assert put(models[0], path) is None
    for k in range(1, 8):
        assert put(models[k], path, keep=3) == f"{k:04}"
        assert same(path, models[k])
    kept = versions(path)
    assert [v.number for v in kept] == ["0005", "0006", "0007", None]
    for version, model in zip(kept, models[4:], strict=True):
        assert same(version.path, model)
    assert len({v.id for v in kept}) == 4
    assert kept[-1].rows == models[7].settings["rows"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "m.versions"]


def test_versions_are_hard_links(models, tmp_path):
    path = tmp_path / "m"
    put(models[0], path)
    inode = (path / "table.safetensors").stat().st_ino
    put(models[1], path)
    assert (tmp_path / "m.versions" / "0001" / "table.safetensors").stat().st_ino == inode


def test_a_disk_without_links(models, tmp_path, monkeypatch):
    def no_link(*_: object) -> None:
        raise OSError("not here")

    monkeypatch.setattr(os, "link", no_link)
    put(models[0], tmp_path / "m")
    put(models[1], tmp_path / "m")
    assert same(tmp_path / "m.versions" / "0001", models[0])


def test_rollback_and_again(models, tmp_path):
    path = tmp_path / "m"
    for k in range(4):
        put(models[k], path)
    assert rollback(path).id == model_id(path)
    assert same(path, models[2])
    assert [v.number for v in versions(path)] == ["0001", "0002", "0004", None]
    rollback(path)  # the one that was replaced
    assert same(path, models[3])
    rollback(path, "1")
    assert same(path, models[0])
    rollback(path, 2)
    assert same(path, models[1])
    kept = [v.path for v in versions(path)]
    assert all(any(same(p, m) for p in kept) for m in models[:4])
    with pytest.raises(SettingError, match=r"has no version 99; it has 00"):
        rollback(path, "99")
    put(models[0], tmp_path / "other")
    with pytest.raises(SettingError, match="no versions"):
        rollback(tmp_path / "other")


def test_rollback_removes_no_other_version(models, tmp_path):
    path = tmp_path / "m"
    for model in models:
        put(model, path, keep=30)
    rollback(path, 3)
    assert [v.number for v in versions(path)] == [
        *("0001", "0002", "0004", "0005", "0006", "0007", "0008"),
        None,
    ]


def test_a_damaged_version_is_not_put_back(models, tmp_path):
    path = tmp_path / "m"
    put(models[0], path)
    put(models[1], path)
    file = tmp_path / "m.versions" / "0001" / "table.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelError, match="cut short"):
        rollback(path)
    assert same(path, models[1])


def test_a_link_stays_a_link(models, tmp_path):
    models[0].save(tmp_path / "real")
    (tmp_path / "m").symlink_to(tmp_path / "real")
    put(models[1], tmp_path / "m")
    assert (tmp_path / "m").is_symlink()
    assert same(tmp_path / "real", models[1])
    assert same(tmp_path / "real.versions" / "0001", models[0])


def test_one_update_at_a_time(models, tmp_path):
    models[0].save(tmp_path / "m")
    with (
        being_changed(tmp_path / "m"),
        pytest.raises(ModelError, match="another process"),
        being_changed(tmp_path / "m"),
    ):
        pass
    put(models[1], tmp_path / "m")


def test_a_model_that_is_gone_says_how_to_get_it_back(models, tmp_path):
    put(models[0], tmp_path / "m")
    put(models[1], tmp_path / "m")
    (tmp_path / "m").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=r"no model\.json; put version 0001 back.*rollback"):
        versions(tmp_path / "m")
    rollback(tmp_path / "m")
    assert same(tmp_path / "m", models[0])


def test_what_a_kill_left_between_two_renames_is_put_back(models, tmp_path):
    path = tmp_path / "m"
    models[0].save(tmp_path / f".m.{dead_process()}.old")
    models[1].save(tmp_path / f".m.{dead_process()}.tmp")
    assert same(path, models[0])  # `load` puts it back
    put(models[2], path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "m.versions"]


def test_what_a_killed_process_of_our_number_left_is_no_hindrance(models, tmp_path):
    left = tmp_path / f".m.{os.getpid()}.tmp"
    models[1].save(left)
    models[0].save(tmp_path / "m")
    assert same(tmp_path / "m", models[0])
    assert not left.exists()


def test_what_is_being_written_is_left_alone(models, tmp_path):
    models[0].save(tmp_path / "m")
    models[1].save(tmp_path / f".m.{os.getppid()}.tmp")
    models[1].save(tmp_path / f".m.{os.getppid()}.old")
    put_back(tmp_path / "m")
    put(models[2], tmp_path / "m")
    assert (tmp_path / f".m.{os.getppid()}.tmp").exists()
    assert (tmp_path / f".m.{os.getppid()}.old").exists()


@pytest.mark.parametrize("can_exchange", [True, False])
def test_replace_folder(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(files, "_exchanged", lambda *_: False)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "word").write_text(name)
    replace_folder(tmp_path / "one", tmp_path / "new")
    replace_folder(tmp_path / "two", tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new" / "word").read_text() == "two"


def test_load_gives_a_whole_model_while_others_take_its_place(models, tmp_path):
    """Header and table are always of the same model."""
    path, stop = tmp_path / "m", threading.Event()
    models[0].save(path)
    offsets = {m.settings["seed"]: m.rows for m in models}

    def change() -> None:
        k = 0
        while not stop.is_set():
            k = (k + 1) % len(models)
            models[k].save(path, overwrite=True)

    writer = threading.Thread(target=change)
    writer.start()
    try:
        until = time.monotonic() + 1.5
        seen = set()
        while time.monotonic() < until:
            found = FieldwiseModel.load(path)
            seed = found.settings["seed"]
            assert np.array_equal(found.rows, offsets[seed])
            seen.add(seed)
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1


KILLED = """
import sys
from pathlib import Path
from fieldwise import FieldwiseModel, files
from fieldwise.updating.versions import being_changed, publish, rollback
path, folder, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if how == "renames":
    files._exchanged = lambda *_: False
models = [FieldwiseModel.load(p) for p in sorted(folder.iterdir())]
print("begun", flush=True)
while True:
    for model in models:
        with being_changed(path) as real:
            publish(model, real, keep=3)
    rollback(path)
"""


@pytest.mark.parametrize("how", ["exchange", "renames"])
def test_killed_at_any_moment(models, tmp_path, how):
    """A whole model is there after every kill, and every version is whole."""
    path, sources = tmp_path / "m", tmp_path / "sources"
    for k, model in enumerate(models[:3]):
        model.save(sources / str(k))
    models[0].save(path)
    known = {model_id(p) for p in sources.iterdir()}
    random, seen = np.random.default_rng(0), set()
    for _ in range(6):
        command = [sys.executable, "-c", KILLED, str(path), str(sources), how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(random.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if how == "exchange":
            assert (path / "model.json").is_file()  # nothing has to be put back
        FieldwiseModel.load(path)
        assert model_id(path) in known
        for version in versions(path):
            FieldwiseModel.load(version.path)
            seen.add(version.id)
    assert seen <= known
    put(models[0], path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["m", "m.versions", "sources"]  # and nothing is left lying about


def test_on_the_command_line(models, tmp_path):
    path = tmp_path / "m"
    models[0].save(path)
    table(300, 5).write_csv(tmp_path / "new.csv")
    out, _ = run("update", path, tmp_path / "new.csv")
    assert "300 new rows; new categories: none" in out
    assert "the one before is version 0001" in out
    out, _ = run("versions", path)
    assert "0001" in out
    assert "in use" in out
    found = json.loads(run("versions", path, "--json")[0])
    assert [v["version"] for v in found] == ["0001", None]
    assert [v["updates"] for v in found] == [0, 1]
    assert found[1]["rows"] == found[0]["rows"] + 300
    out, _ = run("rollback", path)
    assert f"{found[0]['id']}, of" in out
    assert same(path, models[0])
    run("rollback", path, "--to", "2")
    assert json.loads(run("versions", path, "--json")[0])[-1]["id"] == found[1]["id"]
    _, errors = run("rollback", path, "--to", "9", expect=2)
    assert "has no version 9" in errors
    _, errors = run("versions", tmp_path / "new.csv", expect=2)
    assert "is not a model" in errors
