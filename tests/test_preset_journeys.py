"""Presets through the command line: train, evaluate, predict, explain, resume; and from stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from commands import run
from fieldwise import FieldwiseModel, SettingError, boosted, encode, synthetic
from fieldwise import checkpoint as checkpoints
from fieldwise.crossing import decide
from fieldwise.fitting import fit_store, train_table
from fieldwise.report.text import headline
from fieldwise.train import TrainSettings

QUICK = ("--rank", 2, "--learning-rate", 0.1, "--epochs", 2, "--threads", 2)
PRESETS = ("glass", "best")


def planted(n: int, seed: int) -> pl.DataFrame:
    """Every user likes half of the items, with no pattern: only the two together tell. Some users
    are there once, one column is a number kept as it is, one is whole and repeats."""
    liking = np.random.default_rng(0).integers(0, 2, (12, 10))
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 12, n), random.integers(0, 10, n)
    told = np.where(random.random(n) < 0.95, liking[user, item], 1 - liking[user, item])
    return pl.DataFrame(
        {
            "user": [f"once{seed}-{k}" if k % 50 == 0 else f"u{u}" for k, u in enumerate(user)],
            "item": [f"i{k}" for k in item],
            "price": np.round(random.gamma(2, 10, n), 2),
            "visits": random.integers(0, 60, n),
            "size": random.normal(0, 1, n),
            "liked": np.where(told == 1, "yes", "no"),
        }
    )


TABLE = ("--target", "liked", "--kind", "size=linear")


@pytest.fixture(scope="module", autouse=True)
def _few_trees() -> Iterator[None]:
    """So many that they stop by themselves are tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosted, "MEMBERS", 1)
        patch.setattr(boosted, "MOST_TREES", 80)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, and a model of each preset."""
    path = tmp_path_factory.mktemp("presets")
    planted(1500, 1).write_csv(path / "t.csv")
    planted(500, 2).write_csv(path / "new.csv")
    for preset in PRESETS:
        options = (*TABLE, *QUICK, "--preset", preset, "--cross", "user,item")
        out, errors = run("train", path / "t.csv", *options, "--out", path / preset)
        assert "epoch 2" in errors
        assert "logloss" in out
    assert sorted(p.name for p in path.iterdir()) == ["best", "glass", "new.csv", "t.csv"]
    return path


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.filterwarnings("ignore:values never seen")
def test_evaluate_and_predict_new_rows(folder: Path, tmp_path: Path, preset: str) -> None:
    out, _ = run("evaluate", folder / preset, folder / "new.csv", "--json")
    found = json.loads(out)
    assert found["rows"] == 500
    assert found["auc"] > 0.85  # without the cross there is nothing to know: 0.5
    run("predict", folder / preset, folder / "new.csv", "--out", tmp_path / "p.csv")
    chance = pl.read_csv(tmp_path / "p.csv")["probability"].to_numpy()
    loaded = FieldwiseModel.load(folder / preset)
    assert np.allclose(chance, loaded.predict_proba(planted(500, 2).drop("liked")), atol=1e-6)
    truth = planted(500, 2)["liked"] == "yes"
    assert ((chance > 0.5) == truth.to_numpy()).mean() > 0.8
    assert ("best" in run("info", folder / preset)[0]) == (preset == "best")


@pytest.mark.parametrize("preset", PRESETS)
def test_predict_what_was_never_seen(folder: Path, tmp_path: Path, preset: str) -> None:
    strange = planted(50, 3).with_columns(user=pl.lit("nobody"), visits=pl.lit(-7))
    strange.drop("liked").write_csv(tmp_path / "t.csv")
    arguments = (folder / preset, tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    _, errors = run("predict", *arguments)
    assert "user: 100.00% of rows have a value never seen" in errors
    chance = pl.read_csv(tmp_path / "p.csv")["probability"].to_numpy()
    assert ((chance > 0.02) & (chance < 0.98)).all()


@pytest.mark.parametrize("preset", PRESETS)
def test_explain_takes_rows_apart(folder: Path, tmp_path: Path, preset: str) -> None:
    out, errors = run("explain", folder / preset, folder / "new.csv")
    assert "user" in out
    assert ("boosted trees" in errors) == (preset == "best")
    run("explain", folder / preset, folder / "new.csv", "--out", tmp_path / "r.json", "--quiet")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["summary"]["boosted"] == (preset == "best")
    assert ("Boosted trees make the predictions" in headline(report)) == (preset == "best")
    rows = report["rows"]["rows"]
    for row in rows:  # the parts are those of the prediction
        assert 1 / (1 + np.exp(-row["score"])) == pytest.approx(row["prediction"], abs=1e-4)
    assert len(rows) > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cross", "user,itm"), "Did you mean 'item'"),
        (("--cross", "user"), "two different fields or more"),
        (("--cross", "user,size"), "'size' is linear or a list"),
        (("--preset", "slow"), "not one of fast, glass, best"),
        (("--preset", "glass", "--aggregate"), "--aggregate does not go with crosses"),
        (("--preset", "glass", "--combine", "vote"), "leave out --combine 'vote'"),
        (("--preset", "best", "--config", "{folder}/c.toml"), "--min-count 0 must be"),
        (("--config", "{folder}/d.toml"), "cross = 5 is not a list"),
    ],
)
def test_mistakes(folder: Path, tmp_path: Path, options: Any, message: str) -> None:
    (tmp_path / "c.toml").write_text("min_count = 0\n")
    (tmp_path / "d.toml").write_text("cross = 5\n")
    given = [str(option).format(folder=tmp_path) for option in options]
    out = tmp_path / "m"
    _, errors = run("train", folder / "t.csv", *TABLE, *given, "--out", out, "--quiet", expect=2)
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.toml", "d.toml"]


def test_a_config_with_a_preset(folder: Path, tmp_path: Path) -> None:
    lines = ("preset = 'glass'", "cross = [['user', 'item'], 'item, visits']", "min_count = 40")
    (tmp_path / "c.toml").write_text("\n".join((*lines, "epochs = 1", "target = 'liked'")))
    options = ("--config", tmp_path / "c.toml", "--learning-rate", 0.1, "--quiet")
    run("train", folder / "t.csv", *options, "--out", tmp_path / "m")
    model = FieldwiseModel.load(tmp_path / "m")
    words: Any = model.vocabulary
    assert [p for p in words.parents if len(p) > 1] == [("user", "item"), ("item", "visits")]
    assert "price.fine" in model.schema.names
    # Crosses know those who are there once; the field has rows for those there 40 times.
    assert any((words.base["user"].entries["count"] == 1).to_list())
    assert words.base["user"].size > 13
    assert words.floor == 40
    assert words["user"].counts()[1:].min() >= 40
    assert (model.settings["preset"], model.settings["combine"]) == ("glass", "sum")
    assert model.settings["rows"] < 1500


class Stopped(BaseException):
    """As a kill is: nothing catches it."""


@pytest.mark.parametrize(("preset", "saves"), [("glass", 1), ("best", 1), ("best", 5)])
def test_a_run_that_was_stopped_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, saves: int
) -> None:
    """In the field-wise fit, or while rows are scored by models that did not see them."""
    arguments = ("train", folder / "t.csv", *TABLE, *QUICK, "--preset", preset)
    arguments = (*arguments, "--cross", "user,item", "--out", tmp_path / "m")
    real, done = checkpoints.save, []

    def save(*given: Any) -> None:
        real(*given)
        done.append(given)
        if len(done) == saves:
            raise Stopped

    monkeypatch.setattr(checkpoints, "save", save)
    with pytest.raises(Stopped):
        run(*arguments)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".m.work"]
    monkeypatch.setattr(checkpoints, "save", real)
    _, errors = run(*arguments, "--resume")
    assert "epoch 1" not in errors
    assert ("epoch 2" in errors) == (saves == 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    names = ["table.safetensors", "crosses.parquet", *(["boosted.json"] * (preset == "best"))]
    for name in names:
        whole = (folder / preset / name).read_bytes()
        assert (tmp_path / "m" / name).read_bytes() == whole, name


def test_a_store_that_is_there_and_grew(tmp_path: Path) -> None:
    """With the bins and categories it has; those that came later are among them."""
    table = planted(1500, 1)
    later = table.with_columns(user=pl.lit("later"))[:100]
    encode(table, tmp_path / "s", target="liked", min_count=1)
    store = encode(later, tmp_path / "s", append=True)
    settings = TrainSettings(epochs=1, learning_rate=0.1)
    model = fit_store(store, preset="glass", crosses=[("user", "item")], settings=settings)
    words: Any = model.vocabulary
    assert "price.fine" not in model.schema.names
    codes, _ = words.extended(
        store.array("codes"), np.zeros((1600, 0)), words.evidence.of(store.array("codes"))
    )
    for j, name in enumerate(words.base.schema.names):
        counts = words[name].counts()
        assert np.bincount(codes[:, j], minlength=len(counts)).tolist() == counts.tolist(), name
    assert words["user"].labels()[-1] == "later"
    with pytest.raises(SettingError, match="goes with crosses"):
        fit_store(store, min_count=3)


def test_a_format_keeps_its_own_rare_categories(tmp_path: Path) -> None:
    path = synthetic("avazu", 1000).to_text(tmp_path / "train.csv")
    settings = TrainSettings(epochs=1, learning_rate=0.1)
    fitting = {"settings": settings, "preset": "best", "crosses": "none"}
    model = train_table(path, tmp_path / "m", reading={"format": "avazu"}, **fitting)
    words: Any = model.vocabulary
    assert words.floor == 4
    assert {f.min_count for f in words.base.schema.fields} == {1}


def test_what_preset_crosses_and_combine_mean_together() -> None:
    def meaning(*asked: Any) -> tuple[Any, ...]:
        crossing, combine = decide(*asked)
        return (crossing and (crossing.crosses, crossing.boosted), combine)

    assert meaning("fast", None, None) == (None, "sum")
    assert meaning("fast", None, "vote") == (None, "vote")
    assert meaning("fast", "auto", None) == (("auto", False), "sum")
    assert meaning("fast", None, "boosted") == (("auto", True), "sum")
    assert meaning("glass", None, None) == (("auto", False), "sum")
    assert meaning("glass", "none", None) == (None, "sum")
    assert meaning("best", None, None) == (("auto", True), "sum")
    assert meaning("best", "none", None) == (("none", True), "sum")
    assert meaning("best", [("a", "b")], "sum") == (([("a", "b")], False), "sum")
