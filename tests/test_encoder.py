"""FieldEncoder: scikit-learn's contract, and the laws of codes."""

from __future__ import annotations

import datetime as dt
import math
import os
import pickle
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks

from fieldwise import DataError, FieldEncoder, SchemaError
from fieldwise.data import frames, keys


@parametrize_with_checks([FieldEncoder(), FieldEncoder(min_count=1, unseen="rare", n_bins=5)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def codes_of(frame, **settings) -> np.ndarray:
    return FieldEncoder(**settings).fit_transform(frame)


words = (
    st.none() | st.sampled_from(["a", "b", "ä", "", "zz", "A", "\0", "a "]) | st.text(max_size=3)
)
numbers = st.none() | st.floats() | st.integers(-5, 5).map(float)
tables = st.integers(1, 40).flatmap(
    lambda n: st.fixed_dictionaries(
        {
            "word": st.lists(words, min_size=n, max_size=n),
            "whole": st.lists(st.none() | st.integers(-9, 9), min_size=n, max_size=n),
            "number": st.lists(numbers, min_size=n, max_size=n),
            "truth": st.lists(st.none() | st.booleans(), min_size=n, max_size=n),
            "day": st.lists(st.none() | st.dates(), min_size=n, max_size=n),
        }
    )
)
KINDS = {"word": "category", "whole": "category", "number": "quantile", "truth": "category"}
TYPES = {
    "word": pl.String,
    "whole": pl.Int64,
    "number": pl.Float64,
    "truth": pl.Boolean,
    "day": pl.Date,
}


def as_frame(table) -> pl.DataFrame:
    """The columns that hold anything."""
    frame = pl.DataFrame(table, schema=TYPES)
    filled = frame.with_columns(pl.col("number").fill_nan(None))
    return frame.select([c for c in frame.columns if filled[c].count()])


def kinds_for(frame):
    return {k: v for k, v in KINDS.items() if k in frame.columns}


@given(tables, st.integers(1, 3), st.randoms())
def test_codes_forget_the_order_of_rows(table, min_count, random):
    frame = as_frame(table)
    if not frame.width:
        return
    order = list(range(frame.height))
    random.shuffle(order)
    kinds = kinds_for(frame)
    straight = codes_of(frame, kinds=kinds, min_count=min_count)
    shuffled = codes_of(frame[order], kinds=kinds, min_count=min_count)
    assert np.array_equal(straight[order], shuffled)


@given(tables)
def test_encode_then_decode_is_the_identity(table):
    # One more row, so that every column holds something and the words are not all numbers.
    last = {"word": "b", "whole": 3, "number": 0.5, "truth": True, "day": dt.date(2020, 2, 29)}
    frame = as_frame({k: [*v, last[k]] for k, v in table.items()}).drop("number")
    encoder = FieldEncoder(min_count=1, kinds=kinds_for(frame))
    decoded = encoder.inverse_transform(encoder.fit_transform(frame))
    for name in frame.columns:
        wanted = frame[name]
        if name == "day":
            wanted = wanted.dt.to_string("%Y-%m-%d")
        assert decoded[name].to_list() == wanted.to_list()


@pytest.mark.parametrize("text", ["", " "])
def test_a_column_of_blanks_is_text(text):
    encoder = FieldEncoder(min_count=1)
    frame = pl.DataFrame({"word": [text, None, text], "other": ["a", "b", "b"]})
    decoded = encoder.inverse_transform(encoder.fit_transform(frame))
    assert decoded["word"].to_list() == [text, None, text]


@given(tables, tables, st.integers(1, 3))
def test_partial_fit_never_moves_a_code(first, second, min_count):
    frame, more = as_frame(first), pl.DataFrame(second, schema=TYPES)
    if not frame.width:
        return
    more = more.select(frame.columns)
    encoder = FieldEncoder(min_count=min_count, kinds=kinds_for(frame)).fit(frame)
    before = encoder.transform(frame)
    sizes = encoder.vocabulary_.sizes
    encoder.partial_fit(more)
    after = encoder.transform(frame)
    assert all(a <= b for a, b in zip(sizes, encoder.vocabulary_.sizes, strict=True))
    # Only what had no row of its own (rare, or missing unseen) may have got one, at the end.
    moved = before != after
    assert np.all(before[moved] <= 0)
    assert np.all(after[moved] >= np.broadcast_to(sizes, before.shape)[moved])


def test_partial_fit_promotes_a_rare_category():
    encoder = FieldEncoder(min_count=2).fit(pl.DataFrame({"a": ["x", "x", "y"]}))
    assert encoder.transform(pl.DataFrame({"a": ["x", "y", "z"]})).ravel().tolist() == [1, 0, -1]
    encoder.partial_fit(pl.DataFrame({"a": ["y", "z"]}))
    assert encoder.transform(pl.DataFrame({"a": ["x", "y", "z"]})).ravel().tolist() == [1, 2, 0]
    assert encoder.vocabulary_["a"].counts().tolist() == [1, 2, 2]


def test_codes_by_falling_count_ties_by_value():
    frame = pl.DataFrame({"w": ["b", "c", "a", "c", None, None], "n": [10, 9, 9, 10, 2, 2]})
    encoder = FieldEncoder(min_count=1, kinds={"n": "category"}).fit(frame)
    assert encoder.vocabulary_["w"].labels() == ["(rare)", None, "c", "a", "b"]
    assert encoder.vocabulary_["n"].labels() == ["(rare)", "2", "9", "10"]


def test_codes_forget_threads_and_hash_seed(tmp_path):
    """A new process with other threads and another hash seed gives the same bytes."""
    random = np.random.default_rng(0)
    frame = pl.DataFrame({f"c{j}": random.integers(0, 500, 5000).astype(str) for j in range(5)})
    frame.write_parquet(tmp_path / "t.parquet")
    code = (
        "import sys, hashlib, polars as pl; from fieldwise import FieldEncoder\n"
        "codes = FieldEncoder().fit_transform(pl.read_parquet(sys.argv[1]))\n"
        "print(hashlib.sha256(codes.tobytes()).hexdigest())"
    )
    seen = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("7", "2")):
        env = {**os.environ, "POLARS_MAX_THREADS": threads, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code, str(tmp_path / "t.parquet")]
        out = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        seen.add(out.stdout)
    assert len(seen) == 1


def test_chunks_do_not_matter(monkeypatch):
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"a": random.integers(0, 60, 900).astype(str), "b": random.normal(size=900)}
    )
    whole = codes_of(frame)
    monkeypatch.setattr(frames, "CHUNK_ROWS", 7)
    assert np.array_equal(whole, codes_of(frame))


def test_forgetting_raw_values_does_not_matter(monkeypatch):
    frame = pl.DataFrame({"a": np.random.default_rng(0).integers(0, 40, 900)})
    whole = codes_of(frame)
    monkeypatch.setattr(keys, "RAW_LIMIT", 5)
    monkeypatch.setattr(frames, "CHUNK_ROWS", 50)
    encoder = FieldEncoder().fit(frame)
    assert np.array_equal(whole, encoder.transform(frame))


@pytest.mark.parametrize(
    ("policy", "expected"), [("mean", [1, -1, -1]), ("rare", [1, 0, 0]), ("error", None)]
)
def test_unseen(policy, expected):
    encoder = FieldEncoder(unseen=policy).fit(pl.DataFrame({"a": ["x", "x"]}))
    new = pl.DataFrame({"a": ["x", "new", None]})
    if expected is None:
        with pytest.raises(DataError, match=r"row 2: field 'a' holds 'new'"):
            encoder.transform(new)
    else:
        assert encoder.transform(new).ravel().tolist() == expected


def test_the_rare_row_is_always_there():
    encoder = FieldEncoder(min_count=1).fit(pl.DataFrame({"a": ["x", "y"]}))
    assert encoder.vocabulary_.sizes == [3]
    everything_rare = FieldEncoder(min_count=9).fit(pl.DataFrame({"a": ["x", "y"]}))
    assert everything_rare.vocabulary_.sizes == [1]
    assert everything_rare.transform(pl.DataFrame({"a": ["x", "q"]})).ravel().tolist() == [0, -1]


def test_log_rule():
    values = [None, 0, 1, 2, 3, 4, 5, 100, -3]
    encoder = FieldEncoder(kinds={"v": "log2"}, min_count=1)
    frame = pl.DataFrame({"v": values})
    decoded = encoder.inverse_transform(encoder.fit_transform(frame))["v"].to_list()
    expected = [
        None if v is None else math.floor(math.log(v) ** 2) if v > 2 else v - 2 for v in values
    ]
    assert decoded == expected
    text = pl.DataFrame({"v": [None if v is None else str(v) for v in values]})
    assert np.array_equal(encoder.transform(text), encoder.transform(frame))


def test_quantiles_infinities_and_missing():
    values = [*np.linspace(0, 1, 100), math.inf, -math.inf, math.nan, None]
    encoder = FieldEncoder(n_bins=4).fit(pl.DataFrame({"v": values}, strict=False))
    codes = encoder.transform(pl.DataFrame({"v": [0.1, 0.9, 2.0, math.inf, -math.inf, math.nan]}))
    assert codes.ravel().tolist() == [1, 4, 4, 4, 1, 5]
    assert encoder.vocabulary_["v"].counts().tolist()[5] == 2


def test_explicit_edges():
    encoder = FieldEncoder(fields={"age": {"edges": (18, 65)}})
    codes = encoder.fit_transform(pl.DataFrame({"age": [3, 18, 64, 65, None]}))
    assert codes.ravel().tolist() == [1, 2, 2, 3, 4]
    assert encoder.vocabulary_["age"].labels() == ["(rare)", "< 18", "[18, 65)", ">= 65", None]


def test_linear_field_keeps_its_value():
    frame = pl.DataFrame({"v": [1.0, 2.0, 3.0, None], "w": ["a", "a", "b", "b"]})
    encoder = FieldEncoder(kinds={"v": "linear"})
    out = encoder.fit_transform(frame)
    assert np.allclose(out[:3, 0], [-math.sqrt(1.5), 0, math.sqrt(1.5)])
    assert math.isnan(out[3, 0])
    assert out[:, 1].tolist() == [1, 1, 2, 2]
    back = encoder.inverse_transform(out)["v"].to_list()
    assert back[:3] == pytest.approx([1, 2, 3])
    assert back[3] is None
    with pytest.raises(DataError, match=r"row 2: column 'v' holds inf.*quantile"):
        FieldEncoder(kinds={"v": "linear"}).fit(pl.DataFrame({"v": [1.5, math.inf, 2.5]}))


def test_linear_scale_forgets_the_order():
    values = np.random.default_rng(0).lognormal(sigma=9, size=400)
    scales = set()
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(400)
        encoder = FieldEncoder(kinds={"v": "linear"}).fit(pl.DataFrame({"v": values[order]}))
        scales.add((encoder.schema_["v"].center, encoder.schema_["v"].scale))
    assert len(scales) == 1
    ((center, scale),) = scales
    assert center == pytest.approx(values.mean())
    assert scale == pytest.approx(values.std())


def test_calendar_parts():
    times = [dt.datetime(2024, 2, 29, 23, 5), dt.datetime(2024, 3, 1, 0, 0)]
    typed = pl.DataFrame({"t": times * 3})
    text = pl.DataFrame({"t": [t.isoformat() for t in times] * 3})
    encoder = FieldEncoder().fit(typed)
    assert list(encoder.get_feature_names_out()) == ["t", "t.weekday", "t.hour"]
    assert np.array_equal(encoder.transform(typed), encoder.transform(text))
    decoded = encoder.inverse_transform(encoder.transform(typed))
    assert decoded.row(0) == ("2024-02-29", 4, 23)


def same_table_every_way(tmp_path):
    """The same rows as every kind of table."""
    n = 60
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "word": random.choice(["a", "b", "c,d", 'say "x"', "two\nlines"], n),
            "whole": [None if i % 7 == 0 else int(i % 5) for i in range(n)],
            "truth": random.random(n) < 0.5,
            "number": random.normal(size=n),
        }
    )
    frame.write_csv(tmp_path / "t.csv")
    frame.write_csv(tmp_path / "t.tsv", separator="\t")
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_ipc(tmp_path / "t.arrow")
    pandas = pd.DataFrame({c: frame[c].to_list() for c in frame.columns})
    return {
        "polars": frame,
        "lazy": frame.lazy(),
        "arrow table": frame.to_arrow(),
        "pandas": pandas,
        "pandas nullable": pandas.convert_dtypes(),
        "pandas categories": pandas.astype({"word": "category"}),
        "pandas objects": pandas.astype(object),
        "dict": frame.to_dict(as_series=False),
        "csv": tmp_path / "t.csv",
        "tsv": tmp_path / "t.tsv",
        "parquet": tmp_path / "t.parquet",
        "arrow": tmp_path / "t.arrow",
    }


def test_the_same_table_gives_the_same_codes_whatever_holds_it(tmp_path):
    tables = same_table_every_way(tmp_path)
    expected = FieldEncoder().fit(tables["polars"])
    wanted = expected.transform(tables["polars"])
    for name, table in tables.items():
        source = table if not isinstance(table, dict) else pl.DataFrame(table)
        encoder = FieldEncoder().fit(source)
        assert encoder.schema_ == expected.schema_, name
        assert np.array_equal(encoder.transform(source), wanted), name
        # And a table of one kind is encoded alike by what was learned from another.
        assert np.array_equal(expected.transform(source), wanted), name


def test_numbers_as_text_or_float_are_the_same_category():
    encoder = FieldEncoder(min_count=1).fit(pl.DataFrame({"m": [1, 2, 12] * 4}))
    expected = encoder.transform(pl.DataFrame({"m": [12, 1]}))
    for column in (["12", "1"], [12.0, 1.0], ["12.0", " 1"]):
        assert np.array_equal(encoder.transform(pl.DataFrame({"m": column})), expected)


def test_whole_numbers_past_2_to_the_53_stay_apart():
    big = [2**53, 2**53 + 1] * 4
    assert len(set(codes_of(pl.DataFrame({"id": big})).ravel().tolist())) == 2


def test_set_output_pipelines_and_pickle():
    frame = pd.DataFrame({"a": ["x", "y", "x"], "b": [1, 1, 2]})
    encoder = FieldEncoder(min_count=1).set_output(transform="pandas")
    out = encoder.fit_transform(frame)
    assert list(out.columns) == ["a", "b"]
    assert encoder.inverse_transform(out)["a"].tolist() == ["x", "y", "x"]
    again = pickle.loads(pickle.dumps(encoder))
    assert again.transform(frame).equals(out)
    out = FieldEncoder().set_output(transform="polars").fit_transform(frame)
    assert isinstance(out, pl.DataFrame)


def test_drop_schema_and_names():
    frame = pl.DataFrame({"a": ["x", "y"] * 3, "b": [1, 2] * 3})
    encoder = FieldEncoder(drop=["b"]).fit(frame)
    assert list(encoder.get_feature_names_out()) == ["a"]
    assert np.array_equal(
        FieldEncoder(schema=encoder.schema_).fit_transform(frame), encoder.transform(frame)
    )
    with pytest.raises(SchemaError, match="'q'"):
        FieldEncoder(drop=["q"]).fit(frame)


def test_mixed_objects_become_text():
    encoder = FieldEncoder(min_count=1)
    codes = encoder.fit_transform(pd.DataFrame({"m": ["a", 1, 2.5, None, "a"]}, dtype=object))
    assert codes.ravel().tolist() == [1, 3, 4, 2, 1]


def test_nested_values_that_are_no_lists_are_refused():
    with pytest.raises(DataError, match="column 'l' holds Struct"):
        FieldEncoder().fit(pl.DataFrame({"l": [{"a": 1}, {"a": 2}]}))


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([2**63 + 1, 2**63 + 2] * 4, dtype=pl.UInt64),
        pl.Series([2**90 + 1, 2**90 + 2] * 4, dtype=pl.Int128),
        pl.Series([str(2**70 + 1), str(2**70 + 2)] * 4),
    ],
    ids=["UInt64", "Int128", "text"],
)
def test_long_whole_numbers_stay_apart_and_come_back(values):
    encoder = FieldEncoder()
    codes = encoder.fit_transform(pl.DataFrame({"id": values}))
    assert len(set(codes.ravel().tolist())) == 2
    back = encoder.inverse_transform(codes)["id"].to_list()
    assert back == [int(v) for v in values.to_list()]


def test_whole_numbers_however_they_are_written():
    texts = ["7", "+7", "7.0", " 7", "-0", "0", "1e1", "10", "-12.000", "-12"]
    encoder = FieldEncoder(min_count=1, kinds={"a": "category"})
    codes = encoder.fit_transform(pl.DataFrame({"a": texts})).ravel()
    assert encoder.inverse_transform(codes[:, None])["a"].to_list() == (
        [7, 7, 7, 7, 0, 0, 10, 10, -12, -12]
    )


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("quantile", "abc", "row 2: column 'x' is numeric but holds 'abc'"),
        ("log2", "abc", "row 2: column 'x' holds 'abc', which is not a number"),
        ("linear", "abc", "row 2: column 'x' is numeric but holds 'abc'"),
        ("linear", "inf", "row 2: column 'x' holds inf"),
    ],
)
def test_a_wrong_value_is_an_error_in_fit_and_in_transform(kind, value, message):
    good, bad = pl.DataFrame({"x": [0.5, 1.5] * 4}), pl.DataFrame({"x": ["1.5", value]})
    encoder = FieldEncoder(kinds={"x": kind}).fit(good)
    with pytest.raises(DataError, match=message):
        encoder.transform(bad)
    with pytest.raises(DataError, match=message):
        FieldEncoder(schema=encoder.schema_).fit(bad)


def test_times_that_are_none():
    with pytest.raises(SchemaError, match="'city' is asked to be a time"):
        FieldEncoder(kinds={"city": "time"}).fit(pl.DataFrame({"city": ["Rome", "Oslo"]}))
    encoder = FieldEncoder().fit(pl.DataFrame({"t": ["2024-01-01T10:00"] * 3}))
    with pytest.raises(DataError, match="row 1: column 't' holds 'noon', which is not a time"):
        encoder.transform(pl.DataFrame({"t": ["noon"]}))


def test_linear_scale_far_from_zero():
    for values in (1.6e9 + np.arange(10.0), 1e8 + 0.1 * np.arange(10)):
        encoder = FieldEncoder(kinds={"v": "linear"}).fit(pl.DataFrame({"v": values}))
        assert encoder.schema_["v"].scale == pytest.approx(np.std(values - values[0]), rel=1e-9)


def test_one_value_comes_back():
    frame = pl.DataFrame({"v": [5.5] * 6})
    encoder = FieldEncoder(kinds={"v": "quantile"})
    assert encoder.inverse_transform(encoder.fit_transform(frame))["v"].to_list() == [5.5] * 6


def test_a_word_in_a_boolean_field_is_no_truth_value():
    encoder = FieldEncoder(min_count=1).fit(pl.DataFrame({"b": [True, False]}))
    encoder.partial_fit(pl.DataFrame({"b": ["maybe", "TRUE"]}))
    codes = encoder.transform(pl.DataFrame({"b": ["maybe", "true", "False"]}))
    assert encoder.inverse_transform(codes)["b"].to_list() == [None, True, False]


def test_categoricals_are_categories_whatever_they_hold():
    pandas = pd.DataFrame(
        {
            "i": pd.Categorical(range(8)),
            "f": pd.Categorical([i / 2 for i in range(8)]),
            "cut": pd.cut(pd.Series(range(8)), 4),
        }
    )
    arrow = pa.table({"d": pa.array(range(8)).dictionary_encode()})
    for table in (pandas, arrow):
        schema = FieldEncoder(min_count=1).fit(table).schema_
        assert {f.kind for f in schema.fields} == {"category"}


def test_masked_arrays_hide_what_they_mask():
    array = np.ma.masked_values([[1.5], [99.5], [2.5]], 99.5)
    assert FieldEncoder().fit_transform(array).ravel().tolist() == [1, 3, 2]


def test_an_array_after_names_were_learned():
    encoder = FieldEncoder(min_count=1).fit(pl.DataFrame({"a": ["x", "y"], "b": ["u", "v"]}))
    with pytest.warns(UserWarning, match="valid feature names"):
        codes = encoder.transform(np.array([["y", "u"]], dtype=object))
    assert codes.tolist() == [[2, 1]]


@pytest.mark.parametrize(
    "column",
    [
        [Decimal("1.5"), Decimal("2.5")],
        [dt.timedelta(1), dt.timedelta(2)],
        [dt.time(1), dt.time(2)],
        np.array(["2020", "2021"], dtype="datetime64[Y]"),
        np.array([1, 2], dtype="timedelta64[s]"),
        np.array([b"a", b"b"]),
        [pd.NA, "x"],
        pl.Series(["a", "b"], dtype=pl.Enum(["a", "b"])),
        pl.Series(["a", "b"], dtype=pl.Categorical),
        [b"a", b"b"],
        [2**200, 1],
    ],
    ids=str,
)
def test_columns_of_every_kind(column):
    encoder = FieldEncoder(min_count=1).fit({"c": column, "d": [1, 2]})
    codes = encoder.transform({"c": column, "d": [1, 2]})
    assert len({tuple(r) for r in codes.tolist()}) == 2


@pytest.mark.parametrize(
    "table",
    [
        {"a": [1, 2], "b": [1]},
        {"a": 3},
        [[1, 2], [3]],
        {"a": ["\ud800"]},
        {"a": [b"\xff\xfe"]},
        {"a": [np.zeros((2, 2)), np.zeros((2, 2))]},
        pl.DataFrame({"a": [1]}).lazy().select("b"),
    ],
)
def test_tables_that_are_none(table):
    with pytest.raises((DataError, SchemaError)):
        FieldEncoder().fit(table)


def test_more_refusals():
    frame = pl.DataFrame({"a": ["x", "y"]})
    encoder = FieldEncoder().fit(frame)
    with pytest.raises(SchemaError, match="'a' is not in the table"):
        FieldEncoder(schema=encoder.schema_).fit(pl.DataFrame({"b": [1]}))
    with pytest.raises(DataError, match="codes must be numbers"):
        encoder.inverse_transform([["x"]])
    with pytest.raises(SchemaError, match="edges"):
        FieldEncoder(fields={"a": {"edges": ("q",)}}).fit(pl.DataFrame({"a": [1.5, 2.5]}))
    with pytest.raises(DataError, match="List"):
        FieldEncoder(schema=FieldEncoder().fit(pl.DataFrame({"a": [0.5, 1.5]})).schema_).fit(
            pl.DataFrame({"a": [[1.0]]})
        )


@given(tables, st.integers(1, 3))
def test_fit_transform_is_fit_then_transform(table, min_count):
    frame = as_frame(table)
    if not frame.width:
        return
    encoder = FieldEncoder(min_count=min_count, kinds=kinds_for(frame))
    together = encoder.fit_transform(frame)
    assert np.array_equal(together, encoder.transform(frame))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60), st.integers(2, 9))
def test_a_bins_value_lies_in_the_bin(values, n_bins):
    frame = pl.DataFrame({"v": values})
    encoder = FieldEncoder(kinds={"v": "quantile"}, n_bins=n_bins)
    codes = encoder.fit_transform(frame)
    back = encoder.inverse_transform(codes)
    assert np.array_equal(encoder.transform(back), codes)


def test_arrays_go_by_place_and_frames_are_left_alone():
    encoder = FieldEncoder(min_count=1).fit(pl.DataFrame({"x1": ["a", "b"], "x0": ["c", "d"]}))
    with pytest.warns(UserWarning, match="valid feature names"):
        codes = encoder.transform(np.array([["a", "d"]], dtype=object))
    assert codes.tolist() == [[1, 2]]
    encoder = FieldEncoder(min_count=1).fit(np.array([["a", "c"], ["b", "d"]], dtype=object))
    frame = pl.DataFrame({"p": ["a"], "q": ["d"]})
    with pytest.raises((SchemaError, ValueError)), pytest.warns(UserWarning, match="feature names"):
        encoder.transform(frame)
    assert frame.columns == ["p", "q"]


def test_codes_that_are_none():
    encoder = FieldEncoder(min_count=1).fit(pl.DataFrame({"a": ["x", "y"]}))
    for code in (1.5, np.nan):
        with pytest.raises(DataError, match="whole numbers"):
            encoder.inverse_transform([[code]])
    with pytest.raises(SchemaError, match="min_count=9 has no effect beside a schema"):
        FieldEncoder(schema=encoder.schema_, min_count=9).fit(pl.DataFrame({"a": ["x"]}))


def test_several_files_and_libffm(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"x,y\n{name},1\nz,2\n")
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    assert FieldEncoder(min_count=1).fit_transform(paths).shape == (4, 2)
    mixed, ones = tmp_path / "mixed.ffm", tmp_path / "ones.ffm"
    mixed.write_text("1 0:3:1 1:8:0.5\n0 0:4:1 1:8:1\n")
    ones.write_text("0 0:4:1 1:8:1\n")
    encoder = FieldEncoder(min_count=1).fit(mixed)
    assert encoder.schema_.names == ["f0", "f1"]  # the label is no field
    assert encoder.transform(ones).tolist() == encoder.transform(mixed)[1:].tolist()
