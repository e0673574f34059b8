"""Comparisons from end to end: every method on a small table, interrupted, continued, and read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from browser import CHROMIUM
from fieldwise import DataError, SettingError, encode
from fieldwise.baselines import methods
from fieldwise.baselines.methods import METHODS, PAPERS
from fieldwise.cli.comparing import _show
from fieldwise.compare import compare_table, reproduce
from fieldwise.compare import run as running_module
from fieldwise.compare.pages import cells, duration, headings, markdown
from fieldwise.compare.paper import N_ROWS, SIZES, checks
from fieldwise.compare.results import _differences
from fieldwise.data.store import Store
from fieldwise.data.words import StoredWords
from fieldwise.errors import TrainingError
from fieldwise.train import Running
from test_cli import run

QUICK = ["LR", "FM", "GBDT", "fieldwise"]


pytestmark = pytest.mark.usefixtures("one_thread")


def table(n=2000, seed=0, classes=("no", "yes")) -> pl.DataFrame:
    """Agreement of two fields, with a day and a user to split by."""
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 6, n), random.integers(0, 6, n)
    y = np.where(random.random(n) < 0.1, random.integers(0, len(classes), n), (a + b))
    return pl.DataFrame(
        {
            "a": [f"a{k}" for k in a],
            "b": [f"b{k}" for k in b],
            "day": [f"2024-05-{k:02}" for k in np.sort(random.integers(1, 29, n))],
            "user": [f"u{k}" for k in random.integers(0, 60, n)],
            "y": [classes[k % len(classes)] for k in y],
        }
    )


KINDS = {"day": "category"}
READING = {"target": "y", "kinds": KINDS}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All of the paper's methods, two trials, two seeds."""
    out = tmp_path_factory.mktemp("done") / "out"
    said: list[str] = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    body = compare_table(
        table(), out, trials=2, repeats=2, reading=READING, say=said.append
    )  # fmt: skip
    torch.set_num_threads(before)
    return body, out, said


def test_every_method_has_its_row(done):
    body, out, _ = done
    assert [row["name"] for row in body["methods"]] == list(PAPERS)
    for row in body["methods"]:
        assert row["status"] == "ok", row
        assert 0 < row["logloss"] < 1
        assert 0.4 < row["auc"] <= 1
        assert row["seconds"] > 0
        assert row["parameters"] > 0
        assert row["seeds"] == 2
        assert set(row["settings"]) == set(METHODS[row["name"]].grid)
    kept = json.loads((out / "results.json").read_text())
    assert kept == json.loads(json.dumps(body))
    by_name = {row["name"]: row for row in body["methods"]}
    assert by_name["LR"]["logloss"] > by_name["fieldwise"]["logloss"] + 0.1  # it takes pairs
    gap = by_name["LR"]["difference"]
    assert gap["low"] < gap["mean"] < gap["high"]
    wanted = by_name["LR"]["logloss"] - by_name["fieldwise"]["logloss"]
    assert gap["mean"] == pytest.approx(wanted, abs=1e-6)
    assert "difference" not in by_name["fieldwise"]
    assert by_name["GBDT"]["counts"] == "trees"
    rows = body["table"]["rows"]
    assert sum(rows.values()) == 2000
    assert 150 < rows["validation"] < 250
    assert 150 < rows["test"] < 250


def test_results_can_be_read_and_looked_at(done):
    body, out, said = done
    text = (out / "results.md").read_text()
    page = (out / "results.html").read_text()
    for row in body["methods"]:
        assert f"{row['logloss']:.4f}" in text
        assert f"{row['logloss']:.4f}" in page
    assert "±" in text
    assert (out / "results.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("https://www.w3.org", "")
    assert any("of 30 fits" in line for line in said)
    assert "FM (seed 1)" in "\n".join(said)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize(("width", "dark"), [(1100, False), (360, True)])
def test_the_page_in_a_browser(browser, done, width, dark):
    tab = browser.open(done[1] / "results.html", width=width, dark=dark, drawn=False)
    tab.wait("document.readyState === 'complete'")
    assert tab.evaluate("document.querySelectorAll('tbody tr').length") >= len(PAPERS)
    assert tab.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert (tab.requests(), tab.complaints()) == ([], [])


def test_the_same_call_again_takes_no_time_and_more_methods_are_added(done):
    body, out, _ = done
    said: list[str] = []
    options = {"trials": 2, "repeats": 2, "reading": READING, "say": said.append}
    begun = time.perf_counter()
    again = compare_table(table(), out, **options)
    assert again == body
    assert said == []
    assert time.perf_counter() - begun < 20
    more = compare_table(table(), out, methods=["FM", "hist", "ours"], **options)
    assert [row["name"] for row in more["methods"]] == ["FM", "HistGradientBoosting", "fieldwise"]
    assert more["methods"][0]["logloss"] == body["methods"][2]["logloss"]
    with pytest.raises(SettingError, match="another comparison: seed was 0 and is 1"):
        compare_table(table(), out, seed=1, **options)
    with pytest.raises(SettingError, match="another comparison: data was"):
        compare_table(table(seed=5), out, **options)
    compare_table(table(), out, **options)  # as it was


def test_given_parts_and_other_splits(tmp_path):
    train, valid, test = table(), table(600, seed=1), table(500, seed=2)
    test = test.with_columns(user=pl.lit("somebody new"))
    options = {"methods": ["fieldwise"], "trials": 1, "repeats": 1, "reading": READING}
    body = compare_table(train, tmp_path / "g", validation_data=valid, test_data=test, **options)
    assert body["table"]["rows"] == {"training": 2000, "validation": 600, "test": 500}
    assert body["table"]["split"] == "given"
    assert body["methods"][0]["logloss"] < 0.4
    by_day = compare_table(train, tmp_path / "t", split="time:day", **options)
    assert by_day["table"]["rows"]["test"] <= 200
    by_user = compare_table(train, tmp_path / "u", split="group:user", **options)
    assert by_user["methods"][0]["status"] == "ok"
    with pytest.raises(SettingError, match="come together"):
        compare_table(train, tmp_path / "x", test_data=test, **options)


def test_the_split_by_time_reads_the_last_days_and_tunes_on_those_before(tmp_path):
    from fieldwise.compare.parts import parted

    store = encode(table(), tmp_path / "s", **READING)
    parts = parted(store, [], "time:day", 0.1, 0.1, 0)
    days = StoredWords(store).opened["day"].labels()
    j = store.schema.names.index("day")
    of_row = np.array([days[c] for c in store.array("codes")[:, j]])
    train, valid = of_row[parts.problem.only], of_row[parts.problem.held_out]
    assert max(train) < min(valid) <= max(valid) < min(of_row[parts.test])


def test_categories_of_test_rows_alone_are_unseen(tmp_path):
    from fieldwise.compare.parts import parted

    frame = table(500).with_columns(
        user=pl.when(pl.int_range(500) >= 400).then(pl.lit("late")).otherwise(pl.col("user"))
    )
    store = encode(frame, tmp_path / "s", **READING)
    parts = parted(store, [400, 450], "given", 0.1, 0.1, 0)
    j = store.schema.names.index("user")
    codes = parts.problem.rows.read(400, 500)["codes"][:, j]
    assert (codes == -1).all()
    assert (parts.problem.rows.read(0, 400)["codes"] >= 0).all()
    assert parts.problem.counts.sum() == 400 * len(store.schema)


def test_three_classes_leave_some_methods_out(tmp_path):
    body = compare_table(
        table(classes=("a", "b", "c")), tmp_path, methods=["FM", "GBDT", "fieldwise"],
        trials=1, repeats=1, reading=READING,
    )  # fmt: skip
    fm, gbdt, ours = body["methods"]
    assert fm["status"] == "unavailable"
    assert "learns two classes, and the target has 3" in fm["note"]
    assert fm["logloss"] is None
    assert gbdt["status"] == ours["status"] == "ok"
    assert ours["auc"] is None
    assert ours["accuracy"] > 0.8
    assert "accuracy" in (tmp_path / "results.md").read_text()
    assert "unavailable: learns two classes" in (tmp_path / "results.md").read_text()


def test_one_field_and_a_missing_extra(tmp_path, monkeypatch, capsys):
    real = methods.find_spec
    monkeypatch.setattr(methods, "find_spec", lambda n: None if n == "lightgbm" else real(n))
    body = compare_table(
        table().select("a", "y"), tmp_path, methods=["LR", "FM", "GBDT", "ours"],
        trials=1, repeats=1, reading={"target": "y"},
    )  # fmt: skip
    lr, fm, gbdt, ours = body["methods"]
    _show(body, tmp_path)
    assert '"fieldwise[baselines]"' in "".join(capsys.readouterr().out.split())
    assert lr["status"] == ours["status"] == "ok"
    assert "pairs of fields" in fm["note"]
    assert 'pip install "fieldwise[baselines]"' in gbdt["note"]
    assert [gbdt["status"], fm["status"]] == ["unavailable"] * 2


def test_a_method_that_fails_has_a_row_and_the_others_go_on(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("a bug | of theirs")

    def diverges(*_):
        raise TrainingError("the loss is nan")

    broken = {
        "FM": methods.Method(name="FM", fit=fails, grid=METHODS["FM"].grid, start={}),
        "FFM": methods.Method(name="FFM", fit=diverges, grid=METHODS["FFM"].grid, start={}),
        "LR": METHODS["LR"],
    }
    monkeypatch.setattr(running_module, "chosen_methods", lambda names: [broken[n] for n in names])
    body = compare_table(
        table(), tmp_path, methods=["FM", "FFM", "LR"], trials=2, repeats=1, reading=READING
    )
    fm, ffm, lr = body["methods"]
    assert (fm["status"], fm["note"]) == ("failed", "RuntimeError: a bug | of theirs")
    assert (ffm["status"], ffm["note"]) == ("failed", "the loss is nan")
    assert lr["status"] == "ok"
    assert "a bug \\| of theirs" in (tmp_path / "results.md").read_text()


def test_a_method_out_of_time_has_a_row_with_what_it_had(tmp_path, monkeypatch):
    """Time is that of a clock which jumps a minute with every fit."""
    now = [0.0]
    real = METHODS["LR"].fit

    def slow(*given):
        now[0] += 60
        return real(*given)

    method = methods.Method(name="LR", fit=slow, grid=METHODS["LR"].grid, start={})
    monkeypatch.setattr(running_module, "chosen_methods", lambda names: [method])
    monkeypatch.setattr(running_module, "clock", lambda: now[0])
    options = {"methods": ["LR"], "trials": 9, "repeats": 5, "reading": READING}
    body = compare_table(table(), tmp_path / "a", time_limit=4.5, **options)
    (row,) = body["methods"]
    assert row["status"] == "out of time"
    assert 1 <= row["seeds"] < 5
    assert "4.5 minutes were over after" in row["note"]
    assert row["logloss"] > 0
    body = compare_table(table(), tmp_path / "b", time_limit=0.5, **options)
    (row,) = body["methods"]
    assert (row["status"], row["logloss"]) == ("out of time", None)


def test_ctrl_c_keeps_checkpoints_and_no_half_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(running_module, "WORTH_SAVING", 0)

    def stop(record):
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    options = {"methods": ["LR", "ours"], "trials": 1, "repeats": 1, "reading": READING}
    with pytest.raises(KeyboardInterrupt):
        compare_table(table(), tmp_path, running=Running(callbacks=[stop]), **options)
    assert not list((tmp_path / ".work" / "fits").glob("*.json"))
    assert len(list((tmp_path / ".work" / "checkpoint").iterdir())) == 1
    body = compare_table(table(), tmp_path, **options)
    assert [row["status"] for row in body["methods"]] == ["ok", "ok"]
    assert not list((tmp_path / ".work" / "checkpoint").iterdir())


def test_lists_are_counted_without_their_empty_slots(tmp_path):
    from fieldwise.compare.parts import parted

    frame = table(300).with_columns(tags=pl.Series(["p|q|r", "q", "r|q"] * 100))
    store = encode(frame, tmp_path / "s", target="y", kinds={**KINDS, "tags": "list:|"})
    parts = parted(store, [200, 250], "given", 0.1, 0.1, 0)
    j = store.schema.names.index("tags")
    labels = StoredWords(store).opened["tags"].labels()
    own = parts.problem.layout.own(j)
    found = dict(zip(labels, parts.problem.counts[own].tolist(), strict=True))
    assert (found["p"], found["q"], found["r"]) == (67, 200, 133)
    assert found[labels[0]] == 0


def test_a_class_the_training_rows_lack_is_named(tmp_path):
    frame = table(classes=("a", "b", "c"))
    late = frame.with_columns(
        y=pl.when(pl.col("y") == "b", pl.int_range(2000) < 1800)
        .then(pl.lit("a"))
        .otherwise(pl.col("y"))
    )
    with pytest.raises(SettingError, match="no row of class 'b'"):
        compare_table(late, tmp_path, reading=READING, split="time:day", trials=1)


def test_what_cannot_be_compared(tmp_path):
    options = {"methods": ["LR"], "trials": 1, "repeats": 1}
    frame = table().with_columns(price=pl.Series(np.random.default_rng(0).random(2000)))
    with pytest.raises(SettingError, match="is of classes, and 'price' is numbers"):
        compare_table(frame, tmp_path / "a", reading={"target": "price"}, **options)
    assert not (tmp_path / "a").exists()
    with pytest.raises(SettingError, match="must be more than 0 and less than 1 together"):
        compare_table(table(), tmp_path / "b", reading=READING, test=0.95, **options)
    with pytest.raises(SettingError, match="at least one of each"):
        compare_table(table(), tmp_path / "c", methods=["LR"], trials=0)
    with pytest.raises(SettingError, match="time_limit=-1"):
        compare_table(table(), tmp_path / "c", time_limit=-1)
    with pytest.raises(SettingError, match="has one class only"):
        days = pl.Series(f"d{k // 100:02}" for k in range(2000))
        same = table().sort("y").with_columns(day=days)
        compare_table(same, tmp_path / "d", reading=READING, split="time:day", **options)


def test_intervals_hold_what_is_known():
    """Differences of mean 0.1 and deviation 1 over 2500 rows: the interval is about 0.1 +- 0.04."""
    away = np.random.default_rng(1).normal(0.1, 1, 2500)
    ours, weight = np.ones(2500), np.ones(2500)
    found = _differences({"fieldwise": (ours, weight), "LR": (ours + away, weight)})["LR"]
    assert found["mean"] == pytest.approx(away.mean())
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * away.std() / 50, rel=0.1)
    assert _differences({"LR": (ours, weight)}) == {}


def test_rows_of_the_page():
    assert duration(3.21) == "3.2 s"
    assert duration(1000) == "17 min"
    assert duration(10_000) == "2 h 47 min"
    row = {
        "name": "FM", "status": "ok", "note": "", "logloss": 0.4, "auc": 0.75, "seconds": 1.0,
        "parameters": 1234, "counts": "parameters", "settings": {"rank": 3},
        "published": {"logloss": 0.402, "auc": 0.7, "parameters": "1 M", "deviation": 1e-4},
    }  # fmt: skip
    about = {"classes": 2, "rows": dict.fromkeys(("training", "validation", "test"), 9)}
    about |= {"split": "random", "fields": 2, "categories": 5, "target": "y", "share": 0.5}
    body = {"data": "<b>", "table": about, "methods": [row]}
    shown = dict(zip(headings(body), cells(row, body), strict=True))
    assert shown["difference"] == "-0.0020 !"
    assert shown["parameters"] == "1,234"
    assert "| **FM** | **0.4000** |" in markdown(body)
    row["published"]["logloss"] = 0.4009
    assert dict(zip(headings(body), cells(row, body), strict=True))["difference"] == "-0.0009"


@pytest.fixture
def file(tmp_path) -> Path:
    table(10_000).write_csv(tmp_path / "t.csv")
    return tmp_path / "t.csv"


def test_interrupted_and_killed_comparisons_go_on(file, tmp_path):
    out = tmp_path / "out"
    options = ["compare", file, "--target", "y", "--kind", "day=category", "--methods", "LR,FM",
               "--threads", "1", "--trials", "2", "--repeats", "2", "--out", out]  # fmt: skip
    command = [sys.executable, "-m", "fieldwise", *map(str, options)]
    for end in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        for line in process.stderr:
            if "fits" in line:  # one more was made
                break
        process.send_signal(end)
        rest = process.stderr.read()
        process.stderr.close()
        assert process.wait(60) == (130 if end == signal.SIGINT else -signal.SIGKILL), rest
        if end == signal.SIGINT:
            assert "continues where it stopped" in rest
    kept = {p: p.stat().st_mtime_ns for p in (out / ".work" / "fits").glob("*.json")}
    assert kept
    done = run(*options)
    assert "FM" in done.stdout
    for path, when in kept.items():
        assert path.stat().st_mtime_ns == when  # none was made again
    body = json.loads((out / "results.json").read_text())
    assert [row["seeds"] for row in body["methods"]] == [2, 2]
    fresh = tmp_path / "fresh"
    run(*options[:-1], fresh)
    whole = json.loads((fresh / "results.json").read_text())
    for mine, other in zip(body["methods"], whole["methods"], strict=True):
        assert mine["logloss"] == pytest.approx(other["logloss"], abs=2e-3)


def test_mistakes_on_the_command_line(file, tmp_path):
    bad = ["compare", file, "--target", "y", "--out", tmp_path / "o", "--methods"]
    assert "Did you mean 'FFM'?" in run(*bad, "FFN", expect=2).stderr
    assert "column 'z' is not in the table" in run(
        "compare", file, "--target", "z", "--out", tmp_path / "o", expect=2
    ).stderr.replace("target", "column")
    strange = ["reproduce", "movielens", "--data", file, "--out", tmp_path / "o"]
    assert "'movielens' is not one of avazu, criteo" in run(*strange, expect=2).stderr


def raw_criteo(path: Path, n: int, seed: int = 0) -> Path:
    """Lines as the download has them: a label, 13 integers, 26 categories, some of them empty."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(n):
        numbers = [str(k) if k >= 0 else "" for k in random.integers(-1, 60, 13)]
        words = [f"{k:08x}" if k else "" for k in random.integers(0, 9, 26)]
        label = int(random.random() < (0.6 if words[0] == words[1] else 0.2))
        lines.append("\t".join([str(label), *numbers, *words]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_paper_from_synthetic_raw_files(tmp_path):
    path = raw_criteo(tmp_path / "train.txt", 2500)
    options = {"repeats": 1, "methods": ["LR", "GBDT", "FM", "fieldwise"], "figures": False}
    (tmp_path / "wrong.txt").write_text("1,2,3\n")
    with pytest.raises(DataError, match="where there are 40 columns"):
        reproduce("criteo", tmp_path / "wrong.txt", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    body = reproduce("criteo", path, tmp_path / "out", **options)
    assert [row["status"] for row in body["methods"]] == ["ok"] * 4
    ours = body["methods"][3]
    assert ours["settings"] == {
        "learning_rate": 0.01, "weight_decay": 1e-6, "penalty": 1e-3, "ranks": "log 1.6"
    }  # fmt: skip
    assert ours["published"]["logloss"] == 0.4391
    text = (tmp_path / "out" / "results.md").read_text()
    assert "Rows: 2,500, published 45,840,617." in text
    assert "This is not the whole download" in text
    assert "0.4391 ± 0.00005" in text
    assert " !" in text
    with pytest.raises(SettingError, match="no settings of CatBoost"):
        reproduce("criteo", path, tmp_path / "x", methods=["CatBoost"])


class Whole:
    """A store that says it is the whole download."""

    def __init__(self, store: Store, name: str) -> None:
        self.n_rows, self.schema, self._name = N_ROWS[name], store.schema, name

    def counts(self):
        return [np.ones(d) for d in SIZES[self._name]]

    path = Path()

    def vocabulary_bytes(self):
        return b""


def test_the_whole_download_is_known_by_its_rows_and_categories(tmp_path):
    path = raw_criteo(tmp_path / "train.txt", 200)
    store = encode(path, tmp_path / "s", format="criteo")
    found = checks("criteo", Whole(store, "criteo"))
    assert found == [
        "Rows: 45,840,617, as published.",
        "Categories: 395,894, published 395,894; every field as published.",
    ]
    assert any("fields that differ: I1" in line for line in checks("criteo", store))


@pytest.mark.parametrize(("name", "file"), [("criteo", "train.txt"), ("avazu", "train.csv")])
def test_the_paper_from_the_small_raw_samples(name, file, tmp_path):
    path = Path(__file__).parents[2] / "shared" / "data" / name / file
    if not path.exists():
        pytest.skip(f"{name} is not on this machine; its terms do not allow bundling it")
    options = ["--methods", "LR,GBDT,FFM,ours", "--repeats", "1", "--threads", "1", "--no-figures"]
    out = run("reproduce", name, "--data", path, "--out", tmp_path / "o", *options).stdout
    body = json.loads((tmp_path / "o" / "results.json").read_text())
    assert [row["status"] for row in body["methods"]] == ["ok"] * 4
    for row in body["methods"]:
        assert 0.2 < row["logloss"] < 0.7
        assert f"{row['published']['logloss']:.4f}" in out
