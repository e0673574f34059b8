"""A model as SQL: the same scores, in a real DuckDB and a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from databases import Database, duckdb_in_memory, postgres, postgres_server, psql
from exported import (
    KINDS,
    NOT_CARRIED,
    ODD,
    QUOTED,
    SETTINGS,
    as_text,
    close,
    drawn,
    meaning,
    model_of,
    score_or_none,
)
from fieldwise import (
    FieldwiseClassifier,
    FieldwiseModel,
    ModelError,
    SchemaError,
    SettingError,
    StoreError,
)
from fieldwise.export import _postgres
from fieldwise.export.parts import outputs_of
from fieldwise.export.sql import write

pytestmark = pytest.mark.filterwarnings("ignore:values never seen")

BOTH = ("duckdb", "postgres")
TYPES = {
    "place": "text", QUOTED: "bigint", "e": "float8", "v": "float8", "s": "bigint", "t": "float8",
    "k": "boolean", "when": "timestamp", "tags": "text", "i": "bigint[]",
}  # fmt: skip
TEXTS = {name: "text[]" if name == "i" else "text" for name in TYPES}


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    with postgres_server() as folder:
        yield folder


@pytest.fixture(params=BOTH)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "duckdb":
        found = duckdb_in_memory()
    else:
        found = postgres(request.getfixturevalue("server"))
    yield found
    found.connection.close()


def script(model: FieldwiseModel, folder: Path, dialect: str, **options: Any) -> str:
    write(model, folder / "model.sql", dialect=dialect, **options)
    return (folder / "model.sql").read_text(encoding="utf-8")


def scores(database: Database) -> list[Any]:
    """The scores, of which the probabilities are what they should be: null where they are."""
    query = 'SELECT score, probability FROM "fieldwise_scores" ORDER BY id'
    z, chances = map(list, zip(*database.rows(query), strict=True))
    assert close(chances, [None if v is None else (1 + np.tanh(v / 2)) / 2 for v in z])
    return z


@pytest.mark.parametrize("kind", ["plain", "glass", "classes", "several", "counts", "numbers"])
def test_scores_are_those_of_the_model(database: Database, tmp_path: Path, kind: str) -> None:
    """Of typed columns, with what is missing, rare or was never seen."""
    model, new = model_of(kind), drawn(300, 2)
    database.create("input", TYPES)
    database.fill("input", list(TYPES), new.to_dicts())
    database.run(script(model, tmp_path, database.dialect))
    z = model.decision_function(new).reshape(300, -1)
    assert np.ptp(z) > 1  # there is something to get wrong
    meant = meaning(model, z)
    for o, output in enumerate(outputs_of(model)):
        names = [output.score, output.prediction]
        shown = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        found = np.array(database.rows(f'SELECT {shown} FROM "fieldwise_scores" ORDER BY id'))
        assert np.allclose(found[:, 0], z[:, o], atol=1e-5)
        assert np.allclose(found[:, 1], meant[:, o], atol=1e-5)
    names = {name for o in outputs_of(model) for name in (o.score, o.prediction)}
    if kind in ("plain", "glass"):
        assert names == {"score", "probability"}


@pytest.mark.parametrize("kind", ["glass", "classes", "several", "counts", "numbers"])
def test_what_is_refused_has_no_prediction(database: Database, tmp_path: Path, kind: str) -> None:
    model, row = model_of(kind), as_text(drawn(1, 5))[0]
    database.create("input", TEXTS)
    database.fill("input", list(TEXTS), [row, {**row, "e": "seven"}])
    database.run(script(model, tmp_path, database.dialect))
    names = [name for o in outputs_of(model) for name in (o.score, o.prediction)]
    shown = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    taken, refused = database.rows(f'SELECT {shown} FROM "fieldwise_scores" ORDER BY id')
    assert None not in taken
    assert set(refused) == {None}


@pytest.mark.parametrize("kind", ["plain", "glass"])
def test_text_is_read_as_it_is_in_files(database: Database, tmp_path: Path, kind: str) -> None:
    model, new = model_of(kind), drawn(200, 3)
    database.create("input", TEXTS)
    database.fill("input", list(TEXTS), as_text(new))
    database.run(script(model, tmp_path, database.dialect))
    assert close(scores(database), model.decision_function(new).tolist())


@pytest.fixture(scope="module")
def connections(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Database]]:
    """Both, with a model and a table of texts."""
    folder = tmp_path_factory.mktemp("scripts")
    found = [duckdb_in_memory(), postgres(server)]
    for database in found:
        database.create("input", TEXTS)
        database.run(script(model_of("plain"), folder, database.dialect))
    yield found
    for database in found:
        database.connection.close()


NUMBERS = ["7", " 7", "+07.0", "7.", "-0", "1e1", "1E400", "-1e400", "1e-400", "inf", "-Infinity"]
NUMBERS += ["nan", "NAN", "nAn", "", " ", ".5", "0x7", "1_0", "true", "False", "seven", "٧", "3.0"]
NUMBERS += ["12345678901234567890123", "1e20", "100000000000000000000", "0.5", "1.5000", "1e-7"]
NUMBERS += ["\u00a07\u3000", "1e99999", "-1e-99999", "0e99999", "1e-323", "1.7976931348623158e308"]
TIMES = ["2023-12-29", "2023-12-29T07:15", "2024-02-31", "2024-02-29 23", "then", "", "29.12.2023"]
TIMES += ["2023-13-01", "2023-00-10", "2024-1-5", "2024-01-01T", "0000-01-01", "2023-12-29Tab"]
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
number_texts = st.one_of(
    st.sampled_from(NUMBERS), st.integers().map(str), st.floats().map(repr), texts, st.none(),
    st.integers(-9, 60).map(str),
)  # fmt: skip
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "place": st.one_of(st.none(), st.sampled_from(ODD), texts),
    **dict.fromkeys((QUOTED, "e", "v", "s", "t", "k"), number_texts),
    "when": st.one_of(st.none(), st.sampled_from(TIMES), texts, st.datetimes().map(str)),
    "tags": st.one_of(
        st.none(), st.sampled_from(["red|it's", "red| ", "|", " ", "a|b|c|d|e|f"]), texts
    ),
    "i": st.one_of(st.none(), st.lists(st.sampled_from(["1", "2 ", "nan", "x", "", "3.0", None]))),
}


# To shrink takes minutes, by way of databases.
@settings(phases=[Phase.explicit, Phase.generate], max_examples=20)
@given(data=st.data())
def test_odd_values(connections: list[Database], data: st.DataObject) -> None:
    """Null where the model refuses the value; rows in which one column is odd, and all of them."""
    usual = as_text(drawn(1, 5))[0]
    rows = [
        {**usual, name: value}
        for name, values in VALUES.items()
        for value in data.draw(st.lists(values, min_size=3, max_size=12), label=name)
    ]
    rows.append({name: data.draw(values) for name, values in VALUES.items()})
    expected = [score_or_none(model_of("plain"), row) for row in rows]
    for database in connections:
        database.fill("input", list(TEXTS), rows)
        pairs = zip(rows, scores(database), expected, strict=True)
        assert [pair for pair in pairs if not close(*[[z] for z in pair[1:]])] == []


def test_short_numbers_keep_their_value(database: Database, tmp_path: Path) -> None:
    """The text of a real is another number than the real: 0.1 is beside an edge of 0.1."""
    value = np.float32(0.1)
    frame = pl.DataFrame(
        {"x": pl.Series([value] * 50 + [np.float32(-1)] * 50), "y": ["a", "b"] * 50}
    )
    y = np.repeat([1, 0], 50)
    kinds = {"x": "quantile", "y": "category"}
    model = FieldwiseClassifier(kinds=kinds, **SETTINGS).fit(frame, y).model_
    assert model.schema["x"].edges == (float(value),)
    database.create("input", {"x": "real", "y": "text"})
    database.fill("input", ["x", "y"], frame.to_dicts())
    database.run(script(model, tmp_path, database.dialect))
    assert close(scores(database), model.decision_function(frame).tolist())


@pytest.mark.parametrize("unseen", ["rare", "error"])
def test_policies_for_what_was_never_seen(database: Database, tmp_path: Path, unseen: str) -> None:
    frame = drawn(600, 6)
    y = (np.arange(600) % 2).astype(int)
    model = FieldwiseClassifier(kinds=KINDS, unseen=unseen, **SETTINGS).fit(frame, y).model_
    rows = drawn(40, 7).with_columns(t=pl.lit(0.5)).to_dicts()
    rows[0]["place"] = rows[1]["place"] = "never"
    expected = [score_or_none(model, row) for row in rows]
    assert (expected[0] is None) == (unseen == "error")
    assert expected.count(None) < len(rows) / 2
    database.create("input", TYPES)
    database.fill("input", list(TYPES), rows)
    database.run(script(model, tmp_path, database.dialect))
    assert close(scores(database), expected)


def test_a_script_runs_again_and_replaces(database: Database, tmp_path: Path) -> None:
    new = drawn(30, 8)
    database.create("input", TYPES)
    database.fill("input", list(TYPES), new.to_dicts())
    for kind in ("classes", "glass", "plain", "plain"):
        database.run(script(model_of(kind), tmp_path, database.dialect))
    assert close(scores(database), model_of("plain").decision_function(new).tolist())


def test_names_are_quoted(database: Database, tmp_path: Path) -> None:
    """Names of the table, of columns and of all that is made, that would like to be commands."""
    table, prefix = 'in"; DROP TABLE kept; --', "<key>'\"; DROP TABLE kept; -- "
    hostile = "x'); DROP TABLE kept; --"
    frame = pl.DataFrame({hostile: ["a", "b'"] * 50, "%s ? :x": ["c", "d", "e", "f"] * 25})
    y = (np.arange(100) % 2).astype(int)
    model = FieldwiseClassifier(epochs=1, rank=2, min_count=1).fit(frame, y).model_
    database.run("CREATE TABLE kept (id integer)")
    database.create(table, dict.fromkeys(frame.columns, "text"))
    database.fill(table, frame.columns, frame.to_dicts())
    database.run(script(model, tmp_path, database.dialect, table=table, prefix=prefix))
    view = '"' + prefix.replace('"', '""') + 'scores"'
    found = [row[0] for row in database.rows(f"SELECT score FROM {view} ORDER BY id")]
    assert close(found, model.decision_function(frame).tolist())
    assert database.rows("SELECT * FROM kept") == []


def test_another_schema_and_some_columns(database: Database, tmp_path: Path) -> None:
    new = drawn(30, 9)
    database.create("input", TYPES)
    database.fill("input", list(TYPES), new.to_dicts())
    database.run('CREATE SCHEMA other; CREATE TABLE other.t AS SELECT *, 1 AS score FROM "input"')
    options = {"table": "other.t", "key": ["id", QUOTED], "prefix": "m_"}
    database.run(script(model_of("plain"), tmp_path, database.dialect, **options))
    found = database.rows('SELECT * FROM "m_scores" ORDER BY id')
    assert [row[2:] for row in found] == list(enumerate(new[QUOTED].to_list()))
    assert close([row[0] for row in found], model_of("plain").decision_function(new).tolist())


def test_a_table_that_has_a_score_already(database: Database, tmp_path: Path) -> None:
    """It is never taken for ours: DuckDB gives theirs another name, PostgreSQL has none."""
    new = drawn(10, 9)
    database.create("input", {**TYPES, "score": "integer"})
    database.fill("input", list(TYPES), new.to_dicts())
    text = script(model_of("plain"), tmp_path, database.dialect)
    if database.dialect == "postgres":
        with pytest.raises(Exception, match='"score" specified more than once'):
            database.run(text)
    else:
        database.run(text)
        assert close(scores(database), model_of("plain").decision_function(new).tolist())


def test_without_products(database: Database, tmp_path: Path) -> None:
    """Of rank 0 there is nothing but biases."""
    frame = drawn(600, 6)
    y = (np.arange(600) % 2).astype(int)
    model = FieldwiseClassifier(kinds=KINDS, **{**SETTINGS, "rank": 0}).fit(frame, y).model_
    database.create("input", TYPES)
    database.fill("input", list(TYPES), frame.head(50).to_dicts())
    database.run(script(model, tmp_path, database.dialect))
    assert close(scores(database), model.decision_function(frame.head(50)).tolist())


def test_numbers_with_models_of_their_own(database: Database, tmp_path: Path) -> None:
    """A linear field may be given a rank, and then its value is in every product."""
    model, frame = model_of("plain"), drawn(50, 6)
    ranks = [
        2 if f.is_linear else r
        for f, r in zip(model.schema.fields, model.layout.ranks, strict=True)
    ]
    layout = replace(model.layout, ranks=tuple(ranks))
    shape = (layout.n_rows + layout.n_fields, layout.width)
    rows = np.random.default_rng(0).normal(0, 0.3, shape).astype(np.float32)
    model = replace(model, layout=layout, rows=rows)
    database.create("input", TYPES)
    database.fill("input", list(TYPES), frame.to_dicts())
    database.run(script(model, tmp_path, database.dialect))
    assert close(scores(database), model.decision_function(frame).tolist())


def test_wide_rows_and_many_fields(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_postgres, "PAGE", 0)
    monkeypatch.setattr(_postgres, "GROUP", 5)
    database, new = postgres(server), drawn(30, 8)
    database.create("input", TYPES)
    database.fill("input", list(TYPES), new.to_dicts())
    database.run(script(model_of("plain"), tmp_path, "postgres"))
    assert close(scores(database), model_of("plain").decision_function(new).tolist())
    database.connection.close()


def test_the_command_line_reads_the_script(server: Path, tmp_path: Path) -> None:
    """psql looks at every line for commands of its own."""
    database, new = postgres(server), drawn(200, 8)
    database.create("input", TYPES)
    database.fill("input", list(TYPES), new.to_dicts())
    write(model_of("glass"), tmp_path / "model.sql", dialect="postgres")
    assert "ERROR" not in psql(server, tmp_path / "model.sql")
    assert close(scores(database), model_of("glass").decision_function(new).tolist())
    database.connection.close()


def test_a_script_that_fails_leaves_nothing(database: Database, tmp_path: Path) -> None:
    """The table has to be there; without it the model's are not either."""
    text = script(model_of("plain"), tmp_path, database.dialect)
    with pytest.raises(Exception, match="input"):
        database.run(text)
    database.run("ROLLBACK")
    found = database.rows("SELECT table_name FROM information_schema.tables")
    assert not [name for (name,) in found if name.startswith("fieldwise")]


@pytest.mark.parametrize("what", NOT_CARRIED)
def test_what_sql_cannot_carry_is_refused(tmp_path: Path, what: str) -> None:
    changed, message = NOT_CARRIED[what]
    with pytest.raises(ModelError, match=message.format("SQL")):
        write(changed(model_of("plain")), tmp_path / "m.sql")
    assert not list(tmp_path.iterdir())


def test_names_that_a_database_takes_for_one(tmp_path: Path) -> None:
    y = (np.arange(100) % 2).astype(int)

    def model(*names: str) -> FieldwiseModel:
        frame = pl.DataFrame({name: ["a", "b"] * 50 for name in names})
        return FieldwiseClassifier(epochs=1, rank=1).fit(frame, y).model_

    cases = model("Site", "site")
    write(cases, tmp_path / "m.sql", dialect="postgres")
    with pytest.raises(SchemaError, match="'Site' and 'site' are the same name in duckdb"):
        write(cases, tmp_path / "m.sql", dialect="duckdb")
    long = model("x" * 63 + "1", "x" * 63 + "2")
    write(long, tmp_path / "m.sql", dialect="duckdb")
    with pytest.raises(SchemaError, match="are the same name in postgres"):
        write(long, tmp_path / "m.sql", dialect="postgres")
    with pytest.raises(SchemaError, match="cannot be a name in SQL"):
        write(model("a\0", "b"), tmp_path / "m.sql")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dialect": "oracle"}, "dialect='oracle' is not one of duckdb, postgres"),
        ({"table": ""}, "'' cannot be a name in SQL"),
        ({"table": "a..b"}, "'' cannot be a name in SQL"),
        ({"prefix": ""}, "'' cannot be a name in SQL"),
        ({"prefix": "x" * 41}, "longer than 40 bytes"),
        ({"key": ["a\0"]}, "cannot be a name in SQL"),
    ],
)
def test_options_out_of_range(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises((SettingError, SchemaError), match=message):
        write(model_of("plain"), tmp_path / "m.sql", **options)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write to"):
        write(model_of("plain"), tmp_path / "nowhere" / "m.sql")


def test_the_script_says_what_it_is(tmp_path: Path) -> None:
    text = script(model_of("plain"), tmp_path, "duckdb", model_id="tuesday")
    assert "tuesday, for duckdb" in text.splitlines()[0]
    first = script(model_of("plain"), tmp_path, "duckdb")
    loaded = FieldwiseModel.load(model_of("plain").save(tmp_path / "model"))
    assert first == script(loaded, tmp_path, "duckdb")
    assert first.splitlines()[0] != script(model_of("glass"), tmp_path, "duckdb").splitlines()[0]
