"""Searching settings: what is tried, kept, given up, and written for `train`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from fieldwise import SettingError, tune
from fieldwise.errors import MissingExtra, TrainingError
from fieldwise.train import Running
from fieldwise.tune import finished, open_study, search, tune_table
from test_cli import run
from test_compare import table

GRID = {"x": [0, 1, 2], "y": [None, 0.5]}


def test_a_search_tries_every_setting_once_and_then_stops(tmp_path):
    study = open_study(tmp_path / "s.db", "a", 0, {"x": 2, "y": None})
    tried = []

    def loss(settings, report):
        tried.append(tuple(settings.values()))
        return settings["x"] + (settings["y"] or 0)

    search(study, GRID, loss, 6)
    assert tried[0] == (2, None)
    assert len(tried) == len(set(tried)) == 6
    assert study.best_params == {"x": 0, "y": None}
    search(study, GRID, loss, 7)  # there is no seventh
    assert len(tried) == 6
    again = open_study(tmp_path / "s.db", "a", 0, {"x": 2, "y": None})
    search(again, GRID, loss, 6)
    assert len(tried) == 6


def test_settings_that_fail_are_trials_and_other_errors_are_not(tmp_path):
    study = open_study(tmp_path / "s.db", "a", 0)
    said = []

    def loss(settings, report):
        if settings["x"] == 0:
            raise TrainingError("the loss is nan")
        return 1.0

    search(study, GRID, loss, 6, said=lambda *words: said.append(words[-1]))
    assert len(finished(study)) == 6
    assert said.count("the loss is nan") == 2

    def broken(settings, report):
        raise KeyboardInterrupt

    start = {"x": 1, "y": 0.5}
    other = open_study(tmp_path / "s.db", "b", 0, start)
    with pytest.raises(KeyboardInterrupt):
        search(other, GRID, broken, 3)
    assert finished(other) == []
    tried = []
    again = open_study(tmp_path / "s.db", "b", 0, start)
    search(again, GRID, lambda s, r: tried.append(s) or 1.0, 3)
    assert tried[0] == start  # what was interrupted comes first

    def elsewhere(settings, report):
        raise SettingError("there is no GPU here")

    third = open_study(tmp_path / "s.db", "c", 0)
    with pytest.raises(SettingError):
        search(third, GRID, elsewhere, 3)
    assert finished(third) == []  # on another machine it may do


def test_a_trial_behind_the_others_is_given_up(tmp_path):
    study = open_study(tmp_path / "s.db", "a", 0)
    epochs = []

    def suggest_one(trial):
        return {"x": trial.suggest_float("x", 0, 1)}

    def loss(settings, report):
        bad = len(epochs) == 7  # after those that set the scale
        epochs.append(0)
        for epoch in range(1, 6):
            epochs[-1] = epoch
            if report({"epoch": epoch, "loss": 9.0 if bad else 1.0 - 0.01 * epoch}):
                break
        return 9.0 if bad else 0.95

    search(study, suggest_one, loss, 8)
    assert epochs == [5] * 7 + [2]
    assert [t.state.name for t in finished(study)].count("PRUNED") == 1
    assert study.best_value == 0.95


def test_a_search_stops_when_time_is_over(tmp_path):
    study = open_study(tmp_path / "s.db", "a", 0)
    n = []
    search(study, GRID, lambda s, r: n.append(1) or 1.0, 6, is_over=lambda: len(n) >= 2)
    assert len(n) == 2


def test_a_killed_trial_does_not_count(tmp_path):
    start = {"x": 2, "y": None}
    study = open_study(tmp_path / "s.db", "a", 0, start)
    trial = study.ask()  # and nothing more is heard of it
    for name, values in GRID.items():
        trial.suggest_categorical(name, values)
    again = open_study(tmp_path / "s.db", "a", 0, start)
    tried = []
    search(again, GRID, lambda s, r: tried.append(s) or 1.0, 2)
    assert len(finished(again)) == 2
    assert tried[0] == start


@pytest.fixture
def file(tmp_path) -> Path:
    table(4000).write_csv(tmp_path / "t.csv")
    return tmp_path / "t.csv"


def test_tune_then_train(file, tmp_path):
    out = tmp_path / "best.toml"
    options = ["tune", file, "--target", "y", "--kind", "day=category", "--out", out]
    first = run(*options, "--trials", 3, "--threads", 1)
    assert "trial 3 of 3" in first.stderr
    assert "of 3 trials" in first.stdout
    best = tomllib.loads(out.read_text())
    assert best["target"] == ["y"]
    assert best["kind"] == ["day=category"]
    assert 2 <= best["rank"] <= 64
    pictures = {p.name for p in (tmp_path / "best.toml.search").glob("*.png")}
    assert {"history.png", "settings.png"} <= pictures
    more = run(*options, "--trials", 4, "--jobs", 2)
    assert "3 trials are here already" in more.stderr
    assert "of 4 trials" in more.stdout
    model = tmp_path / "model"
    done = run("train", file, "--config", out, "--out", model)
    assert "logloss 0." in done.stdout
    wrong = run("tune", file, "--target", "a", "--out", out, "--trials", 1, expect=2)
    assert "is a search on another table or with other options" in wrong.stderr


def test_side_by_side(file, tmp_path):
    """Two processes share a study; the best is no worse than the start."""
    found = tune_table(
        str(file), tmp_path / "b.toml", trials=4, jobs=2,
        reading={"target": "y", "kinds": {"day": "category"}},
    )  # fmt: skip
    assert found["trials"] == 4
    assert found["loss"] < 0.5


def test_ctrl_c_ends_a_search_and_keeps_no_half_trial(file, tmp_path):
    reading = {"target": "y", "kinds": {"day": "category"}}

    def stop(record):
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    options = {"trials": 2, "reading": reading}
    with pytest.raises(KeyboardInterrupt):
        tune_table(str(file), tmp_path / "b.toml", running=Running(callbacks=[stop]), **options)
    study = open_study(tmp_path / "b.toml.search" / "study.db", "fieldwise", 0)
    assert finished(study) == []
    assert tune_table(str(file), tmp_path / "b.toml", **options)["trials"] == 2
    with pytest.raises(SettingError, match="another table or with other options"):
        tune_table(str(file), tmp_path / "b.toml", split="time:day", **options)


def test_a_trial_that_failed_is_told_with_all_its_settings(file, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise TrainingError("the loss is nan")

    monkeypatch.setattr(tune, "fit_store", broken)
    lines: list[str] = []
    with pytest.raises(SettingError, match="no trial finished"):
        tune_table(
            str(file), tmp_path / "b.toml", trials=1, reading={"target": "y"}, say=lines.append
        )
    assert "the loss is nan" in lines[0]
    assert "rank 32" in lines[0]


def test_numbers_are_tuned_too(tmp_path):
    frame = table(1500).drop("y").with_columns(price=np.random.default_rng(0).random(1500))
    found = tune_table(frame, tmp_path / "b.toml", trials=2, reading={"target": "price"})
    assert np.isfinite(found["loss"])


def test_what_tune_refuses(file, tmp_path, monkeypatch):
    with pytest.raises(SettingError, match="trials=0"):
        tune_table(str(file), tmp_path / "b.toml", trials=0)

    def nothing():
        raise MissingExtra("optuna", "tune")

    monkeypatch.setattr(tune, "require_optuna", nothing)
    with pytest.raises(MissingExtra, match=r'pip install "fieldwise\[tune\]"'):
        tune_table(str(file), tmp_path / "b.toml", trials=1)
