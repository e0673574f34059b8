"""A model on disk and in use: round trips, refusals, one row and many."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import DataError, FieldwiseClassifier, FieldwiseModel, ModelError, SchemaError
from fieldwise.data.chunks import Chunk
from fieldwise.data.single import RowCoder


def clicks(n=3000, seed=0):
    random = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "site": random.choice(["a", "b", "c", None], n).tolist(),
            "hour": random.integers(0, 24, n),
            "price": random.normal(size=n),
            "age": random.normal(40, 9, n),
            "mobile": random.random(n) < 0.5,
            "when": [dt.datetime(2024, 1, 1 + int(d)) for d in random.integers(0, 9, n)],
        }
    )
    y = (frame["site"].fill_null("a") == "a").to_numpy() ^ (frame["hour"] > 12).to_numpy()
    return frame, y.astype(int)


@pytest.fixture(scope="module")
def model() -> FieldwiseModel:
    X, y = clicks()
    return FieldwiseClassifier(kinds={"age": "linear"}, epochs=5, rank=4).fit(X, y).model_


def test_round_trip_across_processes(model, tmp_path):
    X, _ = clicks(seed=1)
    model.save(tmp_path / "m")
    loaded = FieldwiseModel.load(tmp_path / "m")
    assert loaded.schema == model.schema
    assert loaded.layout == model.layout
    assert np.array_equal(loaded.decision_function(X), model.decision_function(X))
    X.write_parquet(tmp_path / "x.parquet")
    code = (
        "import sys; from fieldwise import FieldwiseModel\n"
        "z = FieldwiseModel.load(sys.argv[1]).decision_function(sys.argv[2])\n"
        "sys.stdout.buffer.write(z.tobytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m"), str(tmp_path / "x.parquet")],
        capture_output=True,
        check=True,
    )
    assert done.stdout == model.decision_function(X).tobytes()


def test_the_table_is_mapped(model, tmp_path):
    model.save(tmp_path / "m")
    rows = FieldwiseModel.load(tmp_path / "m").rows
    assert isinstance(rows.base, np.memmap)


@pytest.mark.parametrize("policy", ["mean", "rare"])
def test_unseen_values_are_told_once_a_field(policy):
    X, y = clicks()
    model = FieldwiseClassifier(epochs=1, rank=2, unseen=policy).fit(X, y).model_
    new = X.with_columns(site=pl.lit("z"), hour=pl.Series([99] + [3] * (len(X) - 1)))
    with pytest.warns(UserWarning, match=r"site 100.00% of rows, hour 0.03% of rows"):
        model.decision_function(new)
    model.decision_function(new)  # silent: a warning is an error here
    assert model.decision_function({**X.row(0, named=True), "site": "z"}).shape == (1,)


def test_saving_over_a_model(model, tmp_path):
    model.save(tmp_path / "m")
    with pytest.raises(ModelError, match="is there already"):
        model.save(tmp_path / "m")
    model.save(tmp_path / "m", overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years")
    with pytest.raises(ModelError, match="is not a model; it is not replaced"):
        model.save(tmp_path / "other", overwrite=True)
    (tmp_path / "m" / "model.json").write_bytes(b"rubbish")  # a broken model is one
    model.save(tmp_path / "m", overwrite=True)
    assert FieldwiseModel.load(tmp_path / "m").layout == model.layout


@pytest.mark.parametrize("name", ["model.json", "table.safetensors", "vocabulary.parquet"])
@pytest.mark.parametrize("harm", ["missing", "cut", "flipped"])
def test_damage_is_refused(model, tmp_path, name, harm):
    model.save(tmp_path / "m")
    file = tmp_path / "m" / name
    content = bytearray(file.read_bytes())
    if harm == "missing":
        file.unlink()
    else:
        if harm == "cut":
            del content[-9:]
        else:
            content[len(content) // 2] ^= 4
        file.write_bytes(content)
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        FieldwiseModel.load(tmp_path / "m")


def test_a_newer_model(model, tmp_path):
    model.save(tmp_path / "m")
    file = tmp_path / "m" / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    with pytest.raises(ModelError, match="format 99.*upgrade"):
        FieldwiseModel.load(tmp_path / "m")


def test_columns_too_many_and_too_few(model):
    X, _ = clicks(50)
    with pytest.warns(UserWarning, match="ignored: extra"):
        scores = model.decision_function(X.with_columns(extra=1))
    assert np.array_equal(scores, model.decision_function(X))
    with pytest.raises(SchemaError, match="'site' is not in the table"):
        model.decision_function(X.drop("site"))
    with pytest.raises(SchemaError, match="no value for column 'site'"):
        model.decision_function(X.drop("site").row(0, named=True))


def test_one_row_scores_as_in_a_frame(model):
    X, _ = clicks(200, seed=3)
    frame = model.decision_function(X)
    one_by_one = [float(model.decision_function(row)[0]) for row in X.iter_rows(named=True)]
    assert np.allclose(frame, one_by_one, atol=1e-6)


values = st.one_of(
    st.none(),
    st.sampled_from(["a", "b", "zz", "", "7", "7.0", " 7", "true", "TRUE", "nan", "1e1"]),
    st.integers(-30, 30),
    st.floats(-1e6, 1e6),
    st.booleans(),
)


@given(st.sampled_from(["site", "hour", "mobile"]), values)
def test_one_row_is_coded_as_a_frame_is(model, column, value):
    words = model.vocabulary
    row = {**clicks(1)[0].row(0, named=True), column: value}
    codes, _ = RowCoder(words)(row)
    j = words.schema.names.index(column)
    frame = clicks(1)[0].with_columns(pl.Series(column, [value], strict=False))
    expected, _ = words.encode(Chunk(frame))
    assert codes[0, j] == expected[0, j]


def test_a_value_that_was_refused_is_forgotten(tmp_path):
    """What comes after it scores as before."""
    frame = pl.DataFrame({"count": [1, 5, 50, 9] * 30, "site": ["a", "b", "c"] * 40})
    kinds = {"count": "log2", "site": "category"}
    model = FieldwiseClassifier(kinds=kinds, epochs=1, rank=2).fit(frame, [0, 1] * 60).model_
    for value in ("5", "many", "1", "many", "0050", "7.0"):
        row = {"count": value, "site": "a"}
        if value == "many":
            with pytest.raises(DataError, match="'many', which is not a number"):
                model.decision_function(row)
        else:
            fresh = FieldwiseModel.load(model.save(tmp_path / value))
            assert model.decision_function(row) == fresh.decision_function(row)


def test_many_threads_score_at_once(model):
    X, _ = clicks(4000, seed=4)
    expected = model.decision_function(X)
    found: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: found.append(model.decision_function(X))) for _ in range(6)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 6
    assert all(np.array_equal(f, expected) for f in found)


def test_importance_is_sorted(model):
    found = model.importance()
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert set(found) == set(model.schema.names)
    assert next(iter(found)) in ("site", "hour")
