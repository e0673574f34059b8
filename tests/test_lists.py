"""Fields with several values a row, from any source to a prediction."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fieldwise import FieldEncoder, FieldwiseClassifier, FieldwiseModel, maths
from fieldwise.data import encode, load_vocabulary
from fieldwise.data.readers import open_source
from fieldwise.data.schema import Field, Schema
from fieldwise.data.single import RowCoder
from fieldwise.errors import DataError, FieldwiseError, SchemaError
from fieldwise.fitting import fit_store, train_table
from fieldwise.layout import Layout
from fieldwise.train import TrainSettings

TAGS = [["a", "b"], ["b"], None, ["c", "a", "b"], ["c"], ["a", "a"]]
PLAIN = ["x", "y", "x", "y", "x", "y"]


def frame(tags=TAGS):
    return pl.DataFrame({"tags": tags, "plain": PLAIN[: len(tags)]})


def sources(tmp_path):
    """The same table in every form."""
    table = frame()
    text = [None if t is None else " | ".join(t) for t in TAGS]
    cut = pl.DataFrame({"tags": text, "plain": PLAIN})
    cut.write_csv(tmp_path / "t.csv")
    table.write_parquet(tmp_path / "t.parquet")
    kinds = {"tags": "list:|"}
    return {
        "polars": (table, None),
        "dict": ({"tags": TAGS, "plain": PLAIN}, None),
        "tuples": ({"tags": [t and tuple(t) for t in TAGS], "plain": PLAIN}, None),
        "pandas": (pd.DataFrame({"tags": TAGS, "plain": PLAIN}), None),
        "arrays": (pd.DataFrame({"tags": [t and np.array(t) for t in TAGS], "plain": PLAIN}), None),
        "arrow": (table.to_arrow(), None),
        "parquet": (tmp_path / "t.parquet", None),
        "text": (cut, kinds),
        "csv": (tmp_path / "t.csv", kinds),
    }


def test_every_source_gives_the_same_codes(tmp_path):
    found = {
        name: FieldEncoder(kinds=kinds, min_count=1).fit_codes(data)
        for name, (data, kinds) in sources(tmp_path).items()
    }
    codes, values = found.pop("polars")
    # a four times, b three, c twice, missing once; then x and y
    slots = [[1, 2, 0], [2, 0, 0], [4, 0, 0], [3, 1, 2], [3, 0, 0], [1, 1, 0]]
    assert codes[:, :3].tolist() == slots
    third = np.float32(1 / 3)
    halves, one = [0.5, 0.5, 0], [1, 0, 0]
    assert values.tolist() == [halves, one, one, [third] * 3, one, halves]
    for name, (other, weights) in found.items():
        assert np.array_equal(other, codes), name
        assert np.array_equal(weights, values), name


def test_decoding_gives_the_lists_back():
    encoder = FieldEncoder(min_count=1).fit(frame())
    out = encoder.transform(frame())
    assert list(encoder.get_feature_names_out()) == ["tags", "tags.2", "tags.3", "plain"]
    assert out[1].tolist() == [2, -2, -2, 2]
    back = encoder.inverse_transform(out)
    assert back["tags"].to_list() == TAGS
    assert back["plain"].to_list() == PLAIN
    unseen = encoder.transform(frame([["a", "new"]]))
    assert unseen[0].tolist() == [1, -1, -2, 1]
    assert encoder.inverse_transform(unseen)["tags"].to_list() == [["a", None]]


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_one_row_is_coded_as_a_frame_is(pooling):
    fields = {"tags": {"pooling": pooling}}
    encoder = FieldEncoder(min_count=1, fields=fields).fit(frame())
    coder = RowCoder(encoder.vocabulary_)
    rows = [*TAGS, ["new", "a"], "b", ["a"] * 5, ("c", "b"), [1]]
    for tags in rows:
        codes, values = encoder.codes({"tags": [tags], "plain": ["x"]})
        one, x = coder({"tags": tags, "plain": "x"})
        assert np.array_equal(one, codes), tags
        assert np.array_equal(x, values), tags
    with pytest.raises(DataError, match="row 1: field 'tags' is an empty list"):
        coder({"tags": [], "plain": "x"})
    with pytest.raises(DataError, match="with a null in it"):
        coder({"tags": ["a", None], "plain": "x"})


def test_whole_numbers_in_lists():
    table = pl.DataFrame({"ids": [[7, 12], [7], [12, 7]], "p": ["u", "v", "u"]})
    encoder = FieldEncoder(min_count=1).fit(table)
    assert encoder.schema_["ids"].dtype == "integer"
    assert encoder.codes(table)[0][:, :2].tolist() == [[1, 2], [1, 0], [2, 1]]
    text = pl.DataFrame({"ids": [["7.0", "12"]], "p": ["u"]})
    assert encoder.codes(text)[0][0, :2].tolist() == [1, 2]
    assert RowCoder(encoder.vocabulary_)({"ids": [12], "p": "u"})[0][0, 0] == 2


def planted(n, seed=0):
    """Log-odds are the mean of what each tag brings, and more where the plain field says so."""
    rng = np.random.default_rng(seed)
    words = np.array(list("abcdefgh"))
    worth = rng.normal(0, 2, (3, 8))
    lengths, p = rng.integers(1, 5, n), rng.integers(0, 3, n)
    picked = [rng.choice(8, k, replace=False) for k in lengths]
    z = np.array([worth[i, k].mean() for i, k in zip(p, picked, strict=True)])
    y = (rng.random(n) < 1 / (1 + np.exp(-z))).astype(int)
    return pl.DataFrame({"tags": [words[k].tolist() for k in picked], "p": p, "y": y}), z


def logloss(y, z):
    return float(np.mean(np.logaddexp(0, z) - y * z))


def test_trained_through_a_store_and_scored_in_every_form(tmp_path):
    table, truth = planted(30_000)
    train, test = table[:25_000], table[25_000:]
    cut = train.with_columns(pl.col("tags").list.join(";"))
    cut.write_csv(tmp_path / "t.csv")
    reading = {"target": "y", "kinds": {"tags": "list:;"}}
    fitting = {"settings": TrainSettings(learning_rate=0.15), "rank": 4}
    model = train_table(tmp_path / "t.csv", tmp_path / "model", reading=reading, **fitting)
    loaded = FieldwiseModel.load(tmp_path / "model")
    assert loaded.layout.slots == (4, 1)
    z = loaded.decision_function(test)
    y = test["y"].to_numpy()
    assert logloss(y, z) < logloss(y, truth[25_000:]) + 0.01
    text = test.with_columns(pl.col("tags").list.join(" ; "))
    assert np.array_equal(loaded.decision_function(text), z)
    rows = test.head(20).to_dicts()
    alone = np.concatenate([loaded.decision_function(r) for r in rows])
    np.testing.assert_allclose(alone, z[:20], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        loaded.field_scores(test).sum(axis=1) + loaded.offsets[0], z, atol=1e-5
    )
    # By definition, straight from the table.
    codes, values = loaded.vocabulary.encode(next(open_source(test).chunks()))
    wide = np.ones(codes.shape)
    wide[:, loaded.schema.valued] = values
    truth = maths.scores(loaded.table, loaded.layout, loaded.layout.rows(codes), wide)
    np.testing.assert_allclose(truth[:, 0] + loaded.offsets[0], z, atol=1e-5)
    assert np.array_equal(model.decision_function(test), z)


def test_lists_of_one_value_are_a_plain_field():
    table, _ = planted(3_000)
    one = table.with_columns(pl.col("tags").list.head(1))
    flat = one.with_columns(pl.col("tags").list.first())
    y = table["y"].to_numpy()
    settings = {"rank": 4, "learning_rate": 0.1, "epochs": 3}
    lists = FieldwiseClassifier(**settings).fit(one.drop("y"), y)
    plain = FieldwiseClassifier(**settings).fit(flat.drop("y"), y)
    np.testing.assert_allclose(lists.model_.table, plain.model_.table, atol=1e-5)
    np.testing.assert_allclose(
        lists.predict_proba(one.drop("y")), plain.predict_proba(flat.drop("y")), atol=1e-5
    )


def test_the_order_of_a_list_does_not_matter():
    table, _ = planted(2_000)
    X, y = table.drop("y"), table["y"].to_numpy()
    model = FieldwiseClassifier(rank=4, epochs=2).fit(X, y)
    turned = X.with_columns(pl.col("tags").list.reverse())
    np.testing.assert_allclose(
        model.predict_proba(turned), model.predict_proba(X), rtol=1e-5, atol=1e-6
    )


def test_equal_rows_with_lists_are_taken_together():
    table, _ = planted(4_000)
    X, y = table.drop("y"), table["y"].to_numpy()
    kept = {"rank": 4, "learning_rate": 0.1, "epochs": 5}
    one = FieldwiseClassifier(**kept).fit(X, y).model_.metrics["logloss"]
    few = FieldwiseClassifier(**kept, aggregate=True).fit(X, y).model_.metrics["logloss"]
    assert abs(one - few) < 0.02


def test_longer_lists_than_training_saw_keep_their_first_values():
    encoder = FieldEncoder(min_count=1).fit(frame())
    longer = frame([["a", "b", "c", "a"]])
    codes, values = encoder.codes(longer)
    assert codes[0, :3].tolist() == [1, 2, 3]
    assert values[0] == pytest.approx(1 / 3)
    counted = np.zeros(2, np.int64)
    encoder.vocabulary_.encode(next(open_source(longer).chunks()), counted)
    assert counted.tolist() == [1, 0]
    strict = FieldEncoder(min_count=1, unseen="error").fit(frame())
    with pytest.raises(DataError, match="row 1: field 'tags' has 4 values, and 3 is the most"):
        strict.codes(longer)
    with pytest.raises(DataError, match="row 2: field 'tags' holds 'new', never seen"):
        strict.codes(frame([["a", "b", "c"], ["a", "new"]]))


def test_a_store_with_lists_can_grow(tmp_path):
    table = frame().with_columns(y=pl.Series([0, 1, 0, 1, 1, 0]))
    store = encode(table, tmp_path / "s", target="y", min_count=1)
    assert store.read(0, 6)["values"].shape == (6, 3)
    more = table.with_columns(tags=pl.Series([["d", "a"]] * 6))
    store = encode(more, tmp_path / "s", append=True)
    assert store.read(6, 7)["codes"][0].tolist() == [5, 1, 0, 1]
    words = load_vocabulary(store)
    assert words["tags"].labels() == ["(rare)", "a", "b", "c", None, "d"]
    longer = table.with_columns(tags=pl.Series([["a"] * 4] * 6))
    with pytest.raises(DataError, match="row 1: field 'tags' has 4 values.*start over"):
        encode(longer, tmp_path / "s", append=True)
    assert fit_store(store, validation=0.3).layout.slots == (3, 1)


FFM = "1 0:3:1 1:7:0.5 1:8:2 2:9:0.5\n0 0:4:1 1:8:1 2:9:-2\n1 0:3:1 2:9:1\n0 0:4:1 1:7:1 1:9:3\n"


def test_libffm_with_repeated_fields_and_values(tmp_path):
    path = tmp_path / "t.ffm"
    path.write_text(FFM)
    store = encode(path, tmp_path / "s", min_count=1)
    assert [f.kind for f in store.schema.fields] == ["category", "list", "numeric"]
    assert store.schema["f1"].pooling == "sum"
    labels = load_vocabulary(store)["f1"].labels()
    rows = store.read(0, 4)
    seen = [
        [(labels[c], v) for c, v in zip(codes, values, strict=True) if v]
        for codes, values in zip(rows["codes"][:, 1:3], rows["values"], strict=True)
    ]
    assert seen == [[("7", 0.5), ("8", 2)], [("8", 1)], [(None, 1)], [("7", 1), ("9", 3)]]
    again = encode(path, tmp_path / "s", append=True)
    assert np.array_equal(again.read(4, 8)["values"], rows["values"])
    (tmp_path / "twice.ffm").write_text("1 0:3:1 0:4:1\n")
    with pytest.raises(DataError, match="row 1: field 0 appears twice"):
        encode(tmp_path / "twice.ffm", tmp_path / "s", append=True)
    (tmp_path / "nan.ffm").write_text("1 0:3:1 1:4:nan 1:5:1\n0 0:3:1 1:4:1\n")
    with pytest.raises(DataError, match="row 1: field 'f1' holds a weight that is not a finite"):
        encode(tmp_path / "nan.ffm", tmp_path / "n", target="label")


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"t": [["a"], []], "y": [0, 1]}, {}, "row 2: field 't' is an empty list; null means"),
        ({"t": [["a", None], ["b"]], "y": [0, 1]}, {}, "row 1: field 't' is a list with a null"),
        ({"t": ["a|", "b"], "y": [0, 1]}, {"kinds": {"t": "list:|"}}, "an empty value beside a"),
        ({"t": ["a", "b"], "y": [0, 1]}, {"kinds": {"t": "list"}}, "holds one value a row"),
        ({"t": ["a", "b"], "y": [0, 1]}, {"kinds": {"t": "list:"}}, "lacks the text between"),
        ({"t": [["a"], ["b"]], "y": [0, 1]}, {"kinds": {"t": "numeric"}}, "but holds lists"),
        ({"t": [["a"], ["b"]], "y": [[0], [1]]}, {}, "target 'y' holds lists"),
        ({"t": [["a"] * 3, ["b"]], "y": [0, 1]}, {"max_values": 2}, "has 3 values, and 2 is"),
        ({"t": [["a"] * 300, ["b"]], "y": [0, 1]}, {}, "has 300 values, and 256 is the most"),
        ({"t": [["a"], ["b"]], "y": [0, 1]}, {"pooling": "max"}, "pooling='max' is not one of"),
    ],
)
def test_bad_lists_are_named(tmp_path, table, options, message):
    with pytest.raises(FieldwiseError, match=message):
        encode(pl.DataFrame(table), tmp_path / "s", target="y", **options)
    assert not (tmp_path / "s").exists()


def test_fields_of_lists_are_checked():
    with pytest.raises(SchemaError, match="several values a row need kind='list'"):
        Field(name="a", separator="|")
    with pytest.raises(SchemaError, match="the separator is empty"):
        Field(name="a", kind="list", separator="")
    tags = Field(name="a", kind="list", separator="|", n_slots=3)
    schema = Schema(fields=(tags, Field(name="b")))
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.slots == (3, 1)
    assert schema.valued == [0, 1, 2]
    assert Layout.of((4, 5), rank=2, slots=schema.slots).n_slots == 4


@pytest.mark.filterwarnings("ignore:values never seen")
def test_rows_and_columns_in_dicts_are_told_apart():
    table, _ = planted(400)
    cut = table.with_columns(pl.col("tags").list.join("|"))
    y = table["y"].to_numpy()
    both = FieldwiseClassifier(rank=2, epochs=1, kinds={"tags": "list:|"}).fit(cut.drop("y"), y)
    for tags in ("a|b", ["a", "b"], [" a", "b "], {"a"}, 7, None):
        one = both.model_.decision_function({"tags": tags, "p": 0})
        frame = {"tags": [list(tags) if isinstance(tags, set) else tags], "p": [0]}
        np.testing.assert_allclose(one, both.model_.decision_function(frame), atol=1e-6)
    alone = FieldwiseClassifier(rank=2, epochs=1, kinds={"tags": "list:|"}).fit(cut[["tags"]], y)
    assert len(alone.model_.decision_function({"tags": ["a|b", "c"]})) == 2
    assert len(alone.model_.decision_function({"tags": "a|b"})) == 1
    lists = FieldwiseClassifier(rank=2, epochs=1).fit(table[["tags"]], y)
    assert len(lists.model_.decision_function({"tags": ["a", "b"]})) == 1
    assert len(lists.model_.decision_function({"tags": [["a"], ["b"]]})) == 2


def test_lists_of_unseen_and_rare_values_are_not_missing():
    encoder = FieldEncoder(min_count=2)
    encoder.fit({"tags": [["a", "b"], ["a", "b"], ["z", "a"], None], "p": list("uvuv")})
    out = encoder.transform({"tags": [["z", "a"], ["new", "a"], None], "p": list("uvu")})
    assert encoder.inverse_transform(out)["tags"].to_list()[:2] == [[None, "a"], [None, "a"]]


def test_weights_in_lists_are_the_second_of_two():
    good = pl.DataFrame({"t": [[{"k": "a", "w": 2.0}], [{"k": "b", "w": 0.5}]], "p": ["u", "v"]})
    encoder = FieldEncoder(min_count=1).fit(good)
    assert encoder.codes(good)[1][:, 0].tolist() == [2.0, 0.5]
    for bad in ([{"k": "a"}], [{"w": 2.0, "k": "a"}]):
        with pytest.raises(DataError, match="a value with a weight is a struct of two"):
            FieldEncoder().fit(pl.DataFrame({"t": [bad, bad], "p": ["u", "v"]}))


def test_lists_of_numbers_where_training_saw_text(tmp_path):
    cut = pl.DataFrame({"t": ["1|2", "2", "1"], "p": ["u", "v", "u"]})
    encoder = FieldEncoder(min_count=1, kinds={"t": "list:|"}).fit(cut)
    typed = pl.DataFrame({"t": [[1, 2]], "p": ["u"]})
    assert encoder.codes(typed)[0][0, :2].tolist() == encoder.codes(cut)[0][0, :2].tolist()


def test_a_dropped_list_of_libffm_may_hold_anything(tmp_path):
    path = tmp_path / "t.ffm"
    path.write_text(FFM)
    store = encode(path, tmp_path / "s", min_count=1, drop=["f1", "f2"])
    again = encode(path, tmp_path / "s", append=True)
    assert again.n_rows == 2 * store.n_rows
