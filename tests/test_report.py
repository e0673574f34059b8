"""The report's numbers, and the commands that show what a model learned."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fieldwise import DataError, FieldwiseModel, SettingError
from fieldwise.cli import app
from fieldwise.fitting import train_table
from fieldwise.report.numbers import report_numbers
from fieldwise.train import TrainSettings


def table(n=4000, seed=0):
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 6, n), random.integers(0, 4, n)
    score = 1.5 * (a - 2.5) * np.where(b == 0, -1, 1)
    return pl.DataFrame(
        {
            "a": [f"a{k}" for k in a],
            "b": [None if k == 3 else f"b{k}" for k in b],
            "number": random.normal(size=n),
            "tags": ["x|y" if k % 2 else "z" for k in range(n)],
            "label": np.where(random.random(n) < 1 / (1 + np.exp(-score)), "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    table().write_csv(folder / "train.csv")
    table(1000, seed=1).write_csv(folder / "new.csv")
    reading = {"target": "label", "kinds": {"tags": "list:|", "number": "linear"}}
    settings = TrainSettings(epochs=4, learning_rate=0.1)
    train_table(folder / "train.csv", folder / "m", reading=reading, settings=settings, rank=3)
    return folder


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_numbers_of_a_model_alone(trained):
    model = FieldwiseModel.load(trained / "m")
    numbers = report_numbers(model)
    assert numbers["summary"]["rows"] == model.settings["rows"] > 3000
    assert numbers["summary"]["output"] == "yes"
    assert [f["name"] for f in numbers["fields"]] == ["a", "b", "number", "tags"]
    shares = sum(f["share"] + f["pair_share"] for f in numbers["fields"])
    assert shares == pytest.approx(1)
    pairs = numbers["pairs"]
    assert np.trace(pairs) + np.triu(pairs, 1).sum() == pytest.approx(1)
    every = numbers["categories"]
    assert every["total"] == len(every["name"]) == len(every["count"])
    assert list(every["count"]) == sorted(every["count"], reverse=True)
    assert "(missing)" in every["name"]
    # Each has its card, as the table is small, and says there what the list says.
    by_name = {(c["field"], c["category"]): c for c in numbers["cards"]}
    for k in range(every["total"]):
        card = by_name[numbers["fields"][every["field"][k]]["name"], every["name"][k]]
        for name in ("count", "bias", "main", "distance"):
            assert card[name] == pytest.approx(every[name][k], rel=1e-5)
    assert numbers["rows"] is numbers["calibration"] is numbers["slices"] is None
    assert numbers["bound"]["total"] > numbers["bound"]["train_loss"]


def test_numbers_on_a_table(trained):
    model = FieldwiseModel.load(trained / "m")
    numbers = report_numbers(model, trained / "new.csv")
    frame = pl.read_csv(trained / "new.csv")
    found = numbers["calibration"]
    assert found["rows"] == 1000
    assert found["error"] == pytest.approx(numbers["data_metrics"]["calibration_error"])
    assert found["loss"] == pytest.approx(numbers["data_metrics"]["logloss"])
    row = next(r for r in found["fields"] if r["field"] == "a")
    mine = (frame["a"] == row["category"]).to_numpy()
    assert row["count"] == mine.sum() == frame["a"].value_counts()["count"].max()
    chances = model.predict_proba(frame)
    assert row["predicted"] == pytest.approx(chances[mine].mean())
    assert row["observed"] == pytest.approx((frame["label"] == "yes").to_numpy()[mine].mean())
    rows = numbers["rows"]
    shown = [r["prediction"] for r in rows["rows"]]
    assert max(shown) == pytest.approx(chances.max(), abs=1e-6)
    assert min(shown) == pytest.approx(chances.min(), abs=1e-6)
    first = rows["rows"][0]
    assert first["values"][0] == frame["a"][0]
    assert first["target"] == frame["label"][0]
    assert first["score"] == pytest.approx(rows["base"] + sum(first["effects"]))
    assert 1 / (1 + np.exp(-first["score"])) == pytest.approx(first["prediction"], abs=1e-5)
    assert rows["rows"][1]["values"][3] in ("x, y", "z")


def test_a_table_without_the_target_has_its_rows_explained(trained):
    model = FieldwiseModel.load(trained / "m")
    numbers = report_numbers(model, pl.read_csv(trained / "new.csv").drop("label"))
    assert numbers["calibration"] is None
    assert numbers["rows"]["rows"][0]["target"] is None


def test_no_rows_and_no_such_class_are_refused(trained):
    model = FieldwiseModel.load(trained / "m")
    with pytest.raises(DataError, match="no rows"):
        report_numbers(model, pl.read_csv(trained / "new.csv").head(0))
    with pytest.raises(SettingError, match="output 'maybe' is not one of yes"):
        report_numbers(model, output="maybe")


def test_numbers_of_one_class_of_several(tmp_path):
    frame = table().with_columns(
        label=pl.col("a").replace({"a0": "low", "a5": "high"}).str.slice(0, 1)
    )
    model = train_table(
        frame, tmp_path / "m", reading={"target": "label"}, settings=TrainSettings(epochs=2), rank=2
    )
    classes = model.classes
    numbers = report_numbers(model, frame.head(500), output=classes[1])
    assert numbers["summary"]["output"] == classes[1]
    assert numbers["bound"] is None
    chances = model.predict_proba(frame.head(500))[:, 1]
    assert numbers["rows"]["rows"][0]["prediction"] == pytest.approx(chances[0], abs=1e-6)
    total = sum(b["share"] * b["predicted"] for b in numbers["calibration"]["bins"])
    assert total == pytest.approx(chances.mean())
    observed = sum(b["share"] * b["observed"] for b in numbers["calibration"]["bins"])
    assert observed == pytest.approx((frame["label"].head(500) == classes[1]).mean())


def test_explain_prints_tables(trained):
    found = run("explain", trained / "m", trained / "new.csv", "--quiet")
    assert found.exit_code == 0, found.output
    for words in ("share of the score's variance", "Pairs of fields", "on this table: "):
        assert words in found.output


def test_explain_writes_text_json_and_a_page(trained, tmp_path):
    for name in ("report.md", "report.json", "report.html"):
        found = run("explain", trained / "m", trained / "new.csv", "--out", tmp_path / name)
        assert found.exit_code == 0, found.output
        assert f"{tmp_path / name}: " in found.output
    body = json.loads((tmp_path / "report.json").read_text())
    assert body["summary"]["target"] == "label"
    assert "a0" in body["categories"]["name"]
    assert "a0" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    printed = run("explain", trained / "m", "--format", "md", "--quiet")
    assert printed.output.startswith("# ")


def test_category_shows_a_card_and_a_comparison(trained):
    found = run("category", trained / "m", "b", "b0")
    assert found.exit_code == 0, found.output
    assert "b = b0, of yes" in found.output
    assert "against" in found.output
    assert "b = (missing)" in run("category", trained / "m", "b", "(missing)").output
    two = run("category", trained / "m", "b", "b0", "b1", "--partners", "3")
    assert "Where they differ most" in two.output
    body = json.loads(run("category", trained / "m", "b", "b0", "--json").output)
    assert body["category"] == "b0"
    assert {p["field"] for p in body["partners"]} == {"a", "number", "tags"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("category", "m", "b", "b00"), "Did you mean 'b0'"),
        (("category", "m", "bb", "b0"), "Did you mean 'b'"),
        (("category", "m", "b", "b0", "b0"), "share one model"),
        (("explain", "m", "--out", "report.txt"), "name it .html, .md or .json"),
        (("explain", "m", "--format", "pdf"), "'pdf' is not one of html, md, json"),
        (("explain", "m", "--format", "html"), "needs --out"),
        (("explain", "m", "nothing.csv"), "nothing.csv"),
        (("explain", "nowhere"), "is not a model"),
    ],
)
def test_mistakes_are_a_line_each(trained, monkeypatch, capsys, words, said):
    from fieldwise.cli import main

    monkeypatch.chdir(trained)
    monkeypatch.setattr("sys.argv", ["fieldwise", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_extreme_rows_come_from_all_of_a_long_table(trained, monkeypatch):
    model = FieldwiseModel.load(trained / "m")
    frame = pl.read_csv(trained / "new.csv")
    chances = model.predict_proba(frame)
    order = np.argsort(chances)
    frame = frame[order]  # the highest are last
    whole = report_numbers(model, frame)
    pieces = [frame[low : low + 100] for low in range(0, len(frame), 100)]
    coded = model.coded_chunks
    monkeypatch.setattr(
        model, "coded_chunks", lambda data, **o: (c for p in pieces for c in coded(p))
    )
    parts = report_numbers(model, frame)
    for numbers in (whole, parts):
        shown = [row["prediction"] for row in numbers["rows"]["rows"]]
        assert max(shown) == pytest.approx(chances.max(), abs=1e-6)
        assert min(shown) == pytest.approx(chances.min(), abs=1e-6)
        assert len(shown) <= 50
    assert parts["calibration"]["error"] == pytest.approx(whole["calibration"]["error"])


def test_labels_of_true_and_false_are_judged(tmp_path):
    from fieldwise import FieldwiseClassifier

    frame = table(500).with_columns(late=pl.col("label") == "yes").drop("label", "tags")
    model = FieldwiseClassifier(rank=1, epochs=1).fit(frame.drop("late"), frame["late"]).model_
    assert model.classes == ("false", "true")
    named = frame.rename({"late": model.schema.targets[0].column})
    assert report_numbers(model, named)["calibration"]["rows"] == 500


def test_numbers_have_one_measure_of_loss_and_no_bound(tmp_path):
    from fieldwise import FieldwiseRegressor

    frame = table(2000)
    number = frame["number"].to_numpy() * 50 + 1000
    model = FieldwiseRegressor(rank=1, epochs=3, kinds={"number": "linear"}).fit(
        frame.drop("label", "tags"), number
    )
    numbers = report_numbers(model.model_)
    assert numbers["bound"] is None
    last = numbers["history"][-1]
    assert 0.2 < last["train_loss"] / last["loss"] < 5


def test_rows_taken_together_are_rows_all_the_same():
    from fieldwise import FieldwiseClassifier

    frame = table(3000).select("a", "b", "label")
    plain, merged = (
        FieldwiseClassifier(rank=1, epochs=2, aggregate=aggregate).fit(
            frame.drop("label"), frame["label"]
        )
        for aggregate in (False, True)
    )
    assert merged.model_.settings["rows"] == plain.model_.settings["rows"]
    assert merged.model_.bound().n_rows == plain.model_.bound().n_rows > 2000


def test_names_do_not_steer_the_terminal(tmp_path):
    frame = table(400).with_columns(a=pl.col("a").str.replace("a0", "\x1b[31mred"))
    reading = {"target": "label", "drop": ["tags"]}
    settings = TrainSettings(epochs=1)
    train_table(frame, tmp_path / "m", reading=reading, settings=settings, rank=1)
    found = run("category", tmp_path / "m", "a", "\x1b[31mred")
    assert "red" in found.output
    assert "\x1b" not in found.output
    assert "\x1b" not in run("category", tmp_path / "m", "b", "b0", "--partners", 9).output
