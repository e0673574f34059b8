"""A model as one Python file: the same predictions, where there is NumPy and nothing else."""

from __future__ import annotations

import csv
import datetime as dt
import importlib.util
import io
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exported import (
    KINDS,
    NOT_CARRIED,
    ODD,
    QUOTED,
    SETTINGS,
    close,
    drawn,
    meaning,
    model_of,
    score_or_none,
)
from fieldwise import FieldwiseClassifier, FieldwiseModel, ModelError, StoreError
from fieldwise.export import python
from fieldwise.export.python import write

KINDS_OF_MODELS = ("plain", "glass", "classes", "several", "counts", "numbers")

pytestmark = pytest.mark.filterwarnings("ignore:values never seen")


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    folder = tmp_path_factory.mktemp("exports")
    out = {}
    for kind in KINDS_OF_MODELS:
        write(model_of(kind), folder / f"{kind}.py")
        out[kind] = loaded(folder / f"{kind}.py")
    return out


@pytest.mark.parametrize("kind", KINDS_OF_MODELS)
def test_it_predicts_what_the_model_does(written: dict[str, ModuleType], kind: str) -> None:
    model, module, new = model_of(kind), written[kind], drawn(300, 2)
    rows = new.to_dicts()
    expected = model.decision_function(new)
    assert np.ptp(expected) > 1  # there is something to get wrong
    assert np.allclose(module.score(rows), expected, atol=1e-5)
    meant = meaning(model, expected)
    found = module.predict(rows), module.predict(rows[0])
    if kind == "several":
        assert list(found[0]) == list(found[1]) == [t.column for t in model.schema.targets]
        found = np.stack(list(found[0].values()), axis=1), list(found[1].values())
    assert np.allclose(found[0].reshape(meant.shape), meant, atol=1e-5, rtol=1e-5)
    assert np.allclose(found[1], meant[0], atol=1e-5)
    if kind == "several":
        return
    if kind in ("counts", "numbers"):
        with pytest.raises(ValueError, match="numbers, not classes; use predict"):
            module.predict_proba(rows)
    else:
        assert np.allclose(module.predict_proba(rows), model.predict_proba(new), atol=1e-5)
        assert isinstance(module.predict_proba(rows[0]), list if kind == "classes" else float)


@pytest.mark.parametrize("kind", ["plain", "glass", "classes"])
def test_contributions_are_those_of_the_model(written: dict[str, ModuleType], kind: str) -> None:
    new = drawn(20, 3)
    expected = model_of(kind).explain(new).credited()
    z = model_of(kind).decision_function(new)
    for n, row in enumerate(new.to_dicts()):
        base, parts = written[kind].contributions(row)
        assert list(parts) == expected.names
        assert np.allclose(base, expected.base, atol=1e-6)
        assert np.allclose(np.array(list(parts.values())).T, expected.shapley[n], atol=1e-6)
        assert np.allclose(base + sum(parts.values()), z[n], atol=1e-5)


NUMBERS = ["7", " 7", "+07.0", "7.", "-0", "1e1", "1E400", "-1e400", "1e-400", "inf", "-Infinity"]
NUMBERS += ["nan", "NAN", "nAn", "", " ", ".5", "0x7", "1_0", "true", "False", "seven", "٧", "3.0"]
NUMBERS += ["12345678901234567890123", "1e20", "100000000000000000000", "0.5", "1.5000", "1e-7"]
TIMES = ["2023-12-29", "2023-12-29T07:15", "2024-02-31", "2024-02-29 23", "then", "", "29.12.2023"]
numbers: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(NUMBERS), st.none(), st.integers(-(10**25), 10**25), st.floats(), st.booleans(),
    st.integers(-10, 60), st.integers(-10, 60).map(float), st.sampled_from([0.5, 1e-5, 1e20]),
    st.sampled_from([Decimal("1.50"), Decimal(7), np.int32(3), np.float64(1.5), np.float32(0.5)]),
)  # fmt: skip
times: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(TIMES), st.none(), st.dates(), st.text(),
    st.datetimes(dt.datetime(2023, 12, 1), dt.datetime(2024, 3, 1)),
    st.datetimes(timezones=st.just(dt.timezone(dt.timedelta(hours=5)))),
)  # fmt: skip
texts: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(ODD), st.none(), st.text(), st.integers(0, 9), st.floats(), st.booleans(),
    st.dates(), st.datetimes(), st.times(), st.timedeltas(),
)  # fmt: skip
tags: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.sampled_from(["red", "red|blue", "red| ", "|", " ", "red||7", "a|b|c|d|e|f"]),
    st.lists(st.sampled_from(["red", " blue ", "it's", ""])), st.text(), st.integers(),
)  # fmt: skip
whole: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.lists(st.one_of(st.integers(0, 12), st.none())), st.integers(0, 9),
    st.lists(st.sampled_from(["1", " 2", "3.0", "x", "nan"])), st.sampled_from(["1", "01", "x"]),
)  # fmt: skip
VALUES = {"place": texts, QUOTED: numbers, "e": numbers, "v": numbers, "s": numbers, "t": numbers}
VALUES |= {"k": numbers, "when": times, "tags": tags, "i": whole}


@given(name=st.sampled_from(list(VALUES)), data=st.data(), kind=st.sampled_from(["plain", "glass"]))
def test_odd_values(
    written: dict[str, ModuleType], name: str, data: st.DataObject, kind: str
) -> None:
    row = {**drawn(1, 5).to_dicts()[0], name: data.draw(VALUES[name])}
    expected = score_or_none(model_of(kind), row)
    if expected is None:
        with pytest.raises(ValueError, match="column"):
            written[kind].score(row)
    else:
        assert close([written[kind].score(row)], [expected])


def alone(file: Path, *arguments: str, rows: str = "") -> subprocess.CompletedProcess[str]:
    """The file in a Python that finds NumPy and nothing else that was installed."""
    numpy_home = Path(np.__file__).parents[1]
    code = (
        "import sys, runpy\n"
        "class Only:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        top = name.split('.')[0]\n"
        "        if top not in sys.stdlib_module_names and top not in ('numpy', 'the_model'):\n"
        "            raise ImportError(name + ' is not to be had')\n"
        f"sys.path += [{str(numpy_home)!r}, {str(file.parent)!r}]\n"
        "sys.meta_path.insert(0, Only())\n"
    )
    code += arguments[0] if arguments else f"runpy.run_path({str(file)!r}, run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        input=rows,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def test_it_runs_without_fieldwise(tmp_path: Path) -> None:
    """Rows of CSV on standard input, and imported."""
    model, file = model_of("glass"), tmp_path / "the_model.py"
    write(model, file)
    new = drawn(40, 4).drop("i").with_columns(i=pl.lit("3"), extra=pl.lit(1))
    text = new.with_columns(pl.col("when").dt.to_string("%Y-%m-%dT%H:%M:%S")).write_csv(
        null_value="NA"
    )
    found = alone(file, rows=text)
    assert found.stderr == ""
    lines = found.stdout.splitlines()
    assert lines[0] == "probability"
    table = tmp_path / "new.csv"
    table.write_text(text, encoding="utf-8", newline="")
    with pytest.warns(match="columns the model does not know are ignored: extra"):
        expected = model.predict_proba(table)
    assert np.allclose([float(line) for line in lines[1:]], expected, atol=1e-5)
    row = {"place": "it's", QUOTED: 3, "e": 1.5, "v": None, "s": 7, "t": 0.5, "k": True,
           "when": "2024-01-02T03:04:05", "tags": "red", "i": [1, 2]}  # fmt: skip
    said = alone(file, f"import the_model; print(repr(the_model.predict_proba({row!r})))")
    assert said.stderr == ""
    assert float(said.stdout) == pytest.approx(model.predict_proba(row)[0], abs=1e-5)
    blocked = alone(file, "import fieldwise")
    assert "fieldwise is not to be had" in blocked.stderr


def test_mistakes_in_csv_are_told(tmp_path: Path) -> None:
    file = tmp_path / "the_model.py"
    write(model_of("plain"), file)
    names = list(drawn(1, 0).columns)
    header = io.StringIO()
    csv.writer(header).writerow(names)
    short = alone(file, rows=header.getvalue() + "a,1\n")
    assert short.returncode == 1
    assert "row 1: 2 values where there are 10 columns" in short.stderr
    wrong = alone(file, rows=header.getvalue() + "a,1,x,1,1,1,true,2024-01-01,red,1\n")
    assert "row 1: column 'e': 'x' is no number" in wrong.stderr
    lost = alone(file, rows="place\na\n")
    assert "the row has no value for column" in lost.stderr
    assert alone(file, rows="").stdout == "probability\n"


def test_the_file_says_what_it_is_and_runs_nothing(tmp_path: Path) -> None:
    write(model_of("plain"), tmp_path / "m.py", model_id="tuesday")
    text = (tmp_path / "m.py").read_text()
    assert text.startswith("# Written by fieldwise ")
    assert "of the model tuesday.\n" in text
    assert json.dumps(QUOTED) in text.split("\n\n")[0]
    code = text[: text.index("DATA = ")]
    for word in ("eval(", "exec(", "pickle", "import fieldwise", "from fieldwise"):
        assert word not in code
    compile(text, "m.py", "exec")
    first, second = model_of("plain"), model_of("glass")
    write(first, tmp_path / "a.py")
    write(first, tmp_path / "b.py")
    write(second, tmp_path / "c.py")
    lines = [(tmp_path / f"{x}.py").read_text().splitlines()[0] for x in "abc"]
    assert lines[0] == lines[1] != lines[2]


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    name = 'x"""\nraise SystemExit("broken out")\n#'
    frame = pl.DataFrame({name: ["a", "b"] * 50, "z": ["c", "d", "e", "f"] * 25})
    y = (np.arange(100) % 2).astype(int)
    model = FieldwiseClassifier(epochs=1, rank=2, min_count=1).fit(frame, y).model_
    write(model, tmp_path / "m.py")
    module = loaded(tmp_path / "m.py")
    assert close(module.score(frame.to_dicts()), model.decision_function(frame))


def policy(unseen: str) -> FieldwiseModel:
    frame = drawn(600, 6)
    y = (np.arange(600) % 2).astype(int)
    return FieldwiseClassifier(kinds=KINDS, unseen=unseen, **SETTINGS).fit(frame, y).model_


@pytest.mark.parametrize("unseen", ["rare", "error"])
def test_policies_for_what_was_never_seen(tmp_path: Path, unseen: str) -> None:
    model = policy(unseen)
    write(model, tmp_path / "m.py")
    module = loaded(tmp_path / "m.py")
    row = drawn(1, 7).to_dicts()[0] | {"place": "never", "t": 0.5, "i": [1], "tags": "red"}
    expected = score_or_none(model, row)
    assert (expected is None) == (unseen == "error")
    if unseen == "error":
        with pytest.raises(ValueError, match="'never' was never seen in training"):
            module.score(row)
    else:
        assert close([module.score(row)], [expected])


@pytest.mark.parametrize("what", NOT_CARRIED)
def test_what_the_file_cannot_carry_is_refused(tmp_path: Path, what: str) -> None:
    changed, message = NOT_CARRIED[what]
    with pytest.raises(ModelError, match=message.format("Python")):
        write(changed(model_of("plain")), tmp_path / "m.py")
    assert not list(tmp_path.iterdir())


def test_a_table_too_large_for_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "MOST", 1 << 10)
    with pytest.raises(ModelError, match="MiB, and one Python file holds at most"):
        write(model_of("plain"), tmp_path / "m.py")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write to"):
        write(model_of("plain"), tmp_path / "nowhere" / "m.py")
