"""Field and Schema: round trips, refusals, and the guesses of infer_schema."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data.inferring import infer_schema
from fieldwise.data.profiling import profile
from fieldwise.data.readers import avazu_schema, criteo_schema, open_source
from fieldwise.data.schema import Field, Schema, Target
from fieldwise.errors import DataError, SchemaError


def guess(frame, **settings) -> Schema:
    return infer_schema(profile(open_source(frame)), **settings)


fields = st.builds(
    Field,
    name=st.text(min_size=1, max_size=8),
    min_count=st.integers(1, 50),
    unseen=st.sampled_from(["mean", "rare", "error"]),
    dtype=st.sampled_from(["string", "integer", "float", "boolean"]),
) | st.builds(
    Field,
    name=st.text(min_size=1, max_size=8),
    kind=st.just("numeric"),
    edges=st.none()
    | st.lists(st.floats(-1e9, 1e9), unique=True, max_size=5).map(lambda e: tuple(sorted(e))),
    n_bins=st.integers(1, 99),
)


@given(st.lists(fields, min_size=1, max_size=5, unique_by=lambda f: f.name))
def test_json_round_trip(some):
    schema = Schema(fields=tuple(some), targets=[Target(column="\0y", classes=("a", "b"))])
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.difference(Schema.from_json(schema.to_json())) == ""


@pytest.mark.parametrize("schema", [criteo_schema(), avazu_schema()])
def test_named_schemas_round_trip(schema):
    assert Schema.from_json(schema.to_json()) == schema


def test_named_schemas_are_the_papers():
    assert [f.binning for f in criteo_schema().fields].count("log2") == 13
    assert {f.min_count for f in criteo_schema().fields} == {35}
    assert len(avazu_schema()) == 22
    assert {f.min_count for f in avazu_schema().fields} == {4}
    assert avazu_schema().dropped == ("id",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not an object"),
        ("{}", "no version"),
        (json.dumps({"version": 99, "fields": []}), "version 99.*upgrade"),
        (json.dumps({"version": 1}), "fields"),
        (json.dumps({"version": 1, "fields": [{"name": "a", "colour": 1}]}), "colour"),
        (json.dumps({"version": 1, "fields": [{"name": "a", "kind": "b"}]}), "kind='b'"),
        (json.dumps({"version": 1, "fields": []}), "at least one field"),
    ],
)
def test_bad_schemas(text, message):
    with pytest.raises(SchemaError, match=message):
        Schema.from_json(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "name"),
        ({"name": "a", "min_count": 0}, "min_count=0"),
        ({"name": "a", "unseen": "x"}, "unseen='x'"),
        ({"name": "a", "binning": "linear"}, "needs kind='numeric'"),
        ({"name": "a", "kind": "numeric", "binning": "edges"}, "needs edges"),
        ({"name": "a", "kind": "numeric", "edges": (2, 1)}, "rising"),
        ({"name": "a", "kind": "numeric", "edges": (float("inf"),)}, "finite"),
        ({"name": "a", "part": "second"}, "part='second'"),
    ],
)
def test_bad_fields(settings, message):
    with pytest.raises(SchemaError, match=message):
        Field(**settings)


def test_a_schema_says_how_another_differs():
    a = Schema(fields=(Field(name="x"), Field(name="y")))
    assert "another order" in a.difference(Schema(fields=(Field(name="y"), Field(name="x"))))
    assert "missing: ['y']" in a.difference(Schema(fields=(Field(name="x"),)))
    other = Schema(fields=(Field(name="x", min_count=9), Field(name="y")))
    assert "min_count=9 instead of 2" in a.difference(other)


def test_guesses():
    n = 40
    frame = pl.DataFrame(
        {
            "word": ["a", "b"] * 20,
            "truth": [True, False] * 20,
            "small": [1, 2, 3, 4] * 10,
            "many": list(range(n)),
            "whole_float": [1.0, 2.0, None, 4.0] * 10,
            "fraction": np.linspace(0, 1, n),
            "day": [dt.date(2020, 1, 1)] * n,
            "time": [dt.datetime(2020, 1, 1, 5)] * n,
            "iso": ["2020-01-01T05:00:00"] * n,
            "plain_date": ["2020-01-01"] * n,
            "zip": ["01234", "98765"] * 20,
            "y": [0, 1] * 20,
        }
    )
    schema = guess(frame, target="y")
    kinds = {f.name: (f.kind, f.dtype, f.part) for f in schema.fields}
    assert kinds == {
        "word": ("category", "string", None),
        "truth": ("category", "boolean", None),
        "small": ("category", "integer", None),
        "many": ("numeric", "float", None),
        "whole_float": ("category", "integer", None),
        "fraction": ("numeric", "float", None),
        "day": ("category", "string", "date"),
        "day.weekday": ("category", "integer", "weekday"),
        "time": ("category", "string", "date"),
        "time.weekday": ("category", "integer", "weekday"),
        "time.hour": ("category", "integer", "hour"),
        "iso": ("category", "string", "date"),
        "iso.weekday": ("category", "integer", "weekday"),
        "iso.hour": ("category", "integer", "hour"),
        "plain_date": ("category", "string", None),
        "zip": ("category", "string", None),
    }
    assert schema.target == Target(column="y", kind="classes", dtype="integer")


@pytest.mark.parametrize(("n_distinct", "kind"), [(10, "category"), (11, "numeric")])
def test_whole_numbers_are_categories_up_to_a_quarter(n_distinct, kind):
    values = [i % n_distinct for i in range(40)]
    for column in (values, [float(v) for v in values], [str(v) for v in values]):
        assert guess(pl.DataFrame({"x": column}))["x"].kind == kind


def test_a_csv_guesses_like_a_frame(tmp_path):
    n = 40
    frame = pl.DataFrame(
        {
            "word": ["a", "b"] * 20,
            "truth": [True, False] * 20,
            "small": [1, 2, 3, None] * 10,
            "fraction": np.linspace(0, 1, n),
            "time": [dt.datetime(2020, 1, 1, 5)] * n,
        }
    )
    frame.write_csv(tmp_path / "t.csv")
    assert guess(tmp_path / "t.csv") == guess(frame)


def test_overrides():
    frame = pl.DataFrame({"a": [1, 2] * 20, "b": [0.5, 1.5] * 20, "c": ["2020-01-01"] * 40})
    schema = guess(
        frame,
        kinds={"a": "linear", "b": "category", "c": "time"},
        fields={"c": {"min_count": 7}},
        min_count=3,
    )
    assert schema["a"].is_linear
    assert (schema["b"].kind, schema["b"].dtype, schema["b"].min_count) == ("category", "float", 3)
    assert schema["c"].min_count == 7
    assert "c.weekday" in schema.names
    edges = guess(frame, fields={"b": {"edges": (1.0,)}})["b"]
    assert (edges.binning, edges.edges) == ("edges", (1.0,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "labels"}, "target 'labels'.*Did you mean 'label'"),
        ({"weight": "w"}, "weight 'w'"),
        ({"drop": ["q"]}, "drop 'q'"),
        ({"kinds": {"q": "category"}}, "kinds 'q'"),
        ({"kinds": {"a": "word"}}, "kind 'word' is not one of"),
        ({"kinds": {"s": "numeric"}}, "'s'.*not all numbers"),
        ({"fields": {"a": {"colour": 1}}}, "colour"),
        ({"fields": {"q": {}}}, "field 'q'"),
        ({"target": "label", "drop": ["a", "s"]}, "no column is left"),
    ],
)
def test_refusals(settings, message):
    frame = pl.DataFrame({"a": [1, 2] * 9, "s": ["x", "y"] * 9, "label": [0, 1] * 9})
    with pytest.raises(SchemaError, match=message):
        guess(frame, **settings)


def test_bad_targets_and_empty_columns():
    frame = pl.DataFrame({"a": ["x", "y"], "one": [1, 1], "gap": [1, None], "none": [None, None]})
    with pytest.raises(DataError, match="'one' has the same value"):
        guess(frame, target="one", drop=["none"])
    with pytest.raises(DataError, match="'gap' is missing in 1 of 2 rows"):
        guess(frame, target="gap", drop=["none"])
    with pytest.raises(SchemaError, match=r"'none' has no value in any row.*drop"):
        guess(frame, target="a")


@pytest.mark.parametrize(
    ("values", "kind"),
    [(["no", "yes"], "classes"), ([True, False], "classes"), ([3.5, 7.5], "classes")],
)
def test_two_values_are_classes(values, kind):
    frame = pl.DataFrame({"a": ["x", "y"] * 4, "y": values * 4})
    assert guess(frame, target="y").target.kind == kind
    numbers = pl.DataFrame({"a": ["x"] * 8, "y": range(8)})
    assert guess(numbers, target="y").target.kind == "numeric"
