"""The service, asked in this process: answers equal the model's, and bad input is told so."""

from __future__ import annotations

import asyncio
import errno
import inspect
import io
import json
import math
import os
import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from fieldwise import FieldwiseModel, SettingError
from fieldwise.cli.serving import serve
from fieldwise.errors import FieldwiseError, ModelError
from fieldwise.serve import Limits, create_app
from fieldwise.serve.app import Endpoints
from fieldwise.serve.limits import Refusal
from fieldwise.serve.live import LiveModel
from fieldwise.serve.metrics import Metrics
from fieldwise.serve.scoring import Served, check_finite
from serving import KINDS, clicks, fitted, rows_of

STREAM = "application/vnd.apache.arrow.stream"
FILE = "application/vnd.apache.arrow.file"
PARQUET = "application/vnd.apache.parquet"
SMALL = Limits(max_body=400_000, max_rows=200, max_text=1000, max_batch_rows=5000)


@pytest.fixture(scope="session")
def clients(models):
    """A client of a server of every model."""
    found = {}
    for kind, path in models.items():
        found[kind] = TestClient(create_app(path, limits=SMALL), raise_server_exceptions=False)
        found[kind].__enter__()
    yield found
    for client in found.values():
        client.__exit__(None, None, None)


@pytest.fixture(scope="session")
def client(clients) -> TestClient:
    return clients["plain"]


@pytest.fixture(scope="session")
def model(models) -> FieldwiseModel:
    return FieldwiseModel.load(models["plain"])


def predict(client, rows, **query):
    answer = client.post("/predict", json={"rows": rows}, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(answer, status) -> str:
    """What is said of a request that is refused."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    return body["error"]


# Answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_the_models(kind, clients, models):
    model = FieldwiseModel.load(models[kind])
    rows = rows_of(model)
    found = predict(clients[kind], rows)["predictions"]
    z = np.concatenate([model.decision_function(row) for row in rows])
    meant = model.predictions(z)
    if kind == "number":
        assert "class" not in found[0]
    else:
        predicted = [str(model.predict(row)[0]) for row in rows]
        assert [f["class"] for f in found] == predicted
    if "three" in kind:
        for one, chances in zip(found, meant, strict=True):
            assert one["probabilities"] == dict(zip(model.classes, chances.tolist(), strict=True))
        z, meant = of_class(model, predicted, z), of_class(model, predicted, meant)
    np.testing.assert_allclose([f["score"] for f in found], z, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose([f["prediction"] for f in found], meant, rtol=1e-6, atol=1e-6)


def of_class(model, predicted, values) -> np.ndarray:
    """Of each row (n, K) what stands under the class that is predicted."""
    return values[np.arange(len(values)), [model.classes.index(name) for name in predicted]]


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=5),
    st.sampled_from(["a", "B", "7", "07.0", "2024-01-02T03:04", "2024-02-31", "true", "\0", "t1"]),
)


@given(
    rows=st.lists(st.fixed_dictionaries(dict.fromkeys(("site", "hour", "mobile"), odd)), max_size=6)
)
def test_rows_of_one_call_do_not_touch_each_other(client, model, rows):
    whole = rows_of(model, len(rows))
    rows = [{**usual, **row} for usual, row in zip(whole, rows, strict=True)]
    together = predict(client, rows)["predictions"]
    assert together == [predict(client, [row])["predictions"][0] for row in rows]


@given(
    row=st.fixed_dictionaries(
        dict.fromkeys(("site", "hour", "price", "age", "mobile", "when"), odd)
    )
)
def test_any_plain_value_is_coded_or_refused(client, model, row):
    """By a row alone as by a table: the same score, or neither takes it."""
    row = {**rows_of(model, 1)[0], **row}
    answer = client.post("/predict", json={"rows": [row]})
    columns = {name: [value] for name, value in row.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_tell_unseen", lambda shares: None)
        if answer.status_code == 200:
            z = model.decision_function(pl.DataFrame(columns, strict=False))
            assert answer.json()["predictions"][0]["score"] == pytest.approx(float(z[0]), rel=1e-5)
        else:
            refusal(answer, 422)
            with pytest.raises(FieldwiseError):
                model.decision_function(pl.DataFrame(columns, strict=False))


def test_many_rows_take_turns(client, model):
    rows = rows_of(model, 200)
    found = predict(client, rows)["predictions"]
    z = np.concatenate([model.decision_function(row) for row in rows])
    np.testing.assert_allclose([f["score"] for f in found], z, rtol=1e-6, atol=1e-6)


def test_no_rows_have_no_predictions(client):
    assert predict(client, [])["predictions"] == []


@pytest.mark.parametrize("kind", ["plain", "glass", "best", "three", "number"])
@pytest.mark.parametrize("n", [1, 80])
def test_contributions_lead_from_the_base_to_the_score(kind, n, clients, models):
    model = FieldwiseModel.load(models[kind])
    rows = rows_of(model, n)
    found = predict(clients[kind], rows, explain="true")["predictions"]
    names = [f.name for f in model.schema.fields if not f.cross]
    for row, one in zip(rows, found, strict=True):
        parts = one["explanation"]["contributions"]
        assert [part["field"] for part in parts] == names
        total = one["explanation"]["base"] + sum(part["contribution"] for part in parts)
        assert total == pytest.approx(one["score"], abs=2e-5)
        shown = {part["field"]: part["value"] for part in parts}
        assert shown["site"] == row["site"]
        assert shown["hour"] == str(row["hour"])
        assert shown["when.hour"] == str(int(row["when"][11:13]))


def test_contributions_are_the_models(client, model):
    rows = rows_of(model, 3)
    found = predict(client, rows, explain="true")["predictions"]
    shapley = np.concatenate([model.explain(row).credited().shapley for row in rows])
    ours = [[p["contribution"] for p in f["explanation"]["contributions"]] for f in found]
    np.testing.assert_allclose(ours, shapley, rtol=1e-9, atol=1e-9)


def test_a_vote_is_not_taken_apart(clients, models):
    rows = rows_of(FieldwiseModel.load(models["vote"]), 1)
    answer = clients["vote"].post("/predict?explain=true", json={"rows": rows})
    assert "vote" in refusal(answer, 422)


# Tables -------------------------------------------------------------------------------------------


def packed(frame: pl.DataFrame, kind: str) -> bytes:
    out = io.BytesIO()
    write = {STREAM: frame.write_ipc_stream, FILE: frame.write_ipc, PARQUET: frame.write_parquet}
    write[kind](out)
    return out.getvalue()


def unpacked(body: bytes, kind: str) -> pl.DataFrame:
    read = {STREAM: pl.read_ipc_stream, FILE: pl.read_ipc, PARQUET: pl.read_parquet}
    return read[kind](io.BytesIO(body))


def send(client, frame, kind=STREAM):
    return client.post(
        "/predict/batch", content=packed(frame, kind), headers={"Content-Type": kind}
    )


@pytest.mark.parametrize("kind", [STREAM, FILE, PARQUET])
@pytest.mark.parametrize("of", [kind for kind in KINDS if kind != "rare"])
def test_tables_come_back_as_they_were_sent(kind, of, clients, models):
    model = FieldwiseModel.load(models[of])
    frame = clicks(3, 300).select(model.schema.columns)
    answer = send(clients[of], frame, kind)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == kind
    found = unpacked(answer.content, kind)
    z = model.decision_function(frame)
    meant = model.predictions(z)
    if "three" in of:
        predicted = [str(name) for name in model.predict(frame)]
        assert found["class"].to_list() == predicted
        for k, name in enumerate(model.classes):
            assert found[f"probability_{name}"].to_list() == meant[:, k].tolist()
        z, meant = of_class(model, predicted, z), of_class(model, predicted, meant)
    else:
        assert found.columns == ["prediction", "score"]
    assert found["score"].to_list() == z.tolist()
    assert found["prediction"].to_list() == meant.tolist()


def test_a_table_may_have_the_target_and_categories_and_no_rows(client, model):
    frame = clicks(3, 50).select(model.schema.columns)
    plain = unpacked(send(client, frame).content, STREAM)
    same = frame.with_columns(
        pl.col("site").cast(pl.Categorical), **{model.schema.roles[0]: pl.lit(1)}
    )
    assert unpacked(send(client, same).content, STREAM).equals(plain)
    assert unpacked(send(client, frame.clear()).content, STREAM).shape == (0, 2)


@pytest.mark.parametrize("kind", [STREAM, FILE, PARQUET])
def test_broken_tables_are_refused(kind, client, model):
    frame = clicks(3, 300).select(model.schema.columns)
    whole = packed(frame, kind)
    headers = {"Content-Type": kind}
    random = np.random.default_rng(0)
    broken = [b"", b"rubbish" * 99, whole[: len(whole) // 2], whole[:-3], whole[100:]]
    for _ in range(60):
        altered = bytearray(whole)
        for at in random.integers(0, len(whole), 20):
            altered[at] = random.integers(0, 256)
        broken.append(bytes(altered))
    for body in broken:
        answer = client.post("/predict/batch", content=body, headers=headers)
        assert answer.status_code in (200, 413, 422), answer.text
        if answer.status_code != 200:  # an altered value may still be one
            refusal(answer, answer.status_code)
    for body in broken[:3]:
        refusal(client.post("/predict/batch", content=body, headers=headers), 422)
    assert send(client, frame, kind).status_code == 200


def test_tables_that_do_not_fit_are_refused(client, model):
    frame = clicks(3, 20).select(model.schema.columns)
    said = refusal(send(client, frame.drop("hour")), 422)
    assert "'hour'" in said
    assert "near it are site" in refusal(send(client, frame.with_columns(sites=pl.lit(1))), 422)
    wrong = frame.with_columns(price=pl.lit("dear"))
    assert "row 1" in refusal(send(client, wrong), 422)
    nested = frame.with_columns(site=pl.struct("site", "hour"))
    refusal(send(client, nested), 422)
    large = pl.concat([frame] * 251)
    assert "5,000 rows" in refusal(send(client, large), 413)
    assert "5,000 rows" in refusal(send(client, large, PARQUET), 413)
    plain = client.post("/predict/batch", content=b"{}", headers={"Content-Type": "text/csv"})
    assert STREAM in refusal(plain, 415)
    refusal(client.post("/predict/batch", content=b"{}"), 415)


def arrow_packed(table: pa.Table, kind: str) -> bytes:
    out = io.BytesIO()
    if kind == PARQUET:
        pa.parquet.write_table(table, out)
    else:
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()


@pytest.mark.parametrize("kind", [STREAM, PARQUET])
def test_texts_of_tables_have_their_limit(kind, models, model):
    """As long as they may be they are scored; repeated for nothing they are still counted."""
    frame = clicks(3, 4000).select(model.schema.columns)
    limits = Limits(max_text=2000, max_batch_body=300_000)

    def sent(column, texts):
        table = frame.drop(column).to_arrow().append_column(column, texts)
        body = arrow_packed(table, kind)
        assert len(body) < limits.max_batch_body
        return client.post("/predict/batch", content=body, headers={"Content-Type": kind})

    def repeated(*texts):
        return pa.array(texts).take(pa.array([0, *[len(texts) - 1] * 3999])).dictionary_encode()

    many = repeated("x" * 2000)
    lists = pa.ListArray.from_arrays(pa.array(range(4001), pa.int32()), many)
    with TestClient(create_app(models["plain"], limits=limits)) as client:
        assert sent("site", repeated("é" * 2000, "b")).status_code == 200
        assert "bytes unpacked" in refusal(sent("site", many), 413)
        assert "bytes unpacked" in refusal(sent("tags", lists), 413)
        assert "2,001 letters" in refusal(sent("site", repeated("x" * 2001, "b")), 422)
        plain = pa.array(["x" * 2001, *["b"] * 3999])
        assert "2,001 letters" in refusal(sent("site", plain), 422)


def test_tables_that_grow_unseen_are_refused(client, model):
    frame = clicks(3, 20).select(model.schema.columns).drop("site").to_arrow()

    def said(column, kind=STREAM, **options):
        out = io.BytesIO()
        table = frame.append_column("site", column)
        if kind == PARQUET:
            pa.parquet.write_table(table, out, **options)
        body = out.getvalue() or arrow_packed(table, kind)
        return refusal(
            client.post("/predict/batch", content=body, headers={"Content-Type": kind}), 422
        )

    texts = pa.array(["a"] * 20)
    assert "run_end_encoded" in said(pc.run_end_encode(texts))
    assert "list_view" in said(pa.array([["a"]] * 20, pa.list_view(pa.string())))
    packed = {"use_dictionary": False, "column_encoding": {"site": "DELTA_BYTE_ARRAY"}}
    assert "DELTA_BYTE_ARRAY" in said(texts, PARQUET, **packed)
    assert "1,000 bytes" in said(pa.array([b"a" * 1000] * 20, pa.binary(1000)), PARQUET)


def test_many_columns_are_refused_soon(client, model):
    names = [*model.schema.columns, *(f"c{k}" for k in range(60_000))]
    body = arrow_packed(pa.table({name: pa.nulls(1) for name in names}), STREAM)
    begun = time.perf_counter()
    answer = client.post("/predict/batch", content=body, headers={"Content-Type": STREAM})
    assert "'c0'" in refusal(answer, 422)
    assert time.perf_counter() - begun < 15


def test_a_column_twice_is_refused(client, model):
    table = clicks(3, 20).select(model.schema.columns).to_arrow()
    for kind in (STREAM, PARQUET):
        body = arrow_packed(table.append_column("hour", pa.nulls(20)), kind)
        answer = client.post("/predict/batch", content=body, headers={"Content-Type": kind})
        assert "'hour' twice" in refusal(answer, 422)


# Bad input ----------------------------------------------------------------------------------------


def deep(n: int) -> bytes:
    return b'{"rows": [{"site": ' + b"[" * n + b"]" * n + b"}]}"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b'{"rows": [{"site": NaN}]}', 400, "not JSON"),
        (b'{"rows": [{"site": "\0"}]}', 400, "not JSON"),
        (b'{"rows": [{"site": "\xff"}]}', 400, "not JSON"),
        (b'{"rows": [{"site": "\\ud800"}]}', 400, "not JSON"),
        (deep(100_000), 400, "not JSON"),
        (deep(500), 422, "no value for column"),
        (b"[]", 422, "not an object"),
        (b"{}", 422, "'rows'"),
        (b'{"rows": {}}', 422, "'rows'"),
        (b'{"rows": [[]]}', 422, "row 1 is a list"),
        (b'{"rows": [null]}', 422, "row 1 is null"),
        (b'{"rows": [], "explain": true}', 422, "'explain'"),
        (b'{"rows": [{}]}', 422, "'site' (and 6 more); null means missing"),
        (b'{"rows": [' + b"{}," * 300 + b"{}]}", 413, "301 rows"),
        (b'{"rows": ["' + b"x" * 500_000 + b'"]}', 413, "400,000 bytes"),
    ],
)
def test_bad_bodies_are_refused(body, status, said, client):
    assert said in refusal(client.post("/predict", content=body), status)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sites": "a"}, "a column 'sites' that the model does not know; near it are site"),
        ({"zzz": 1}, "it knows site, hour"),
        ({"price": "dear"}, "column 'price' is numeric but holds 'dear'"),
        ({"age": 1e300}, "which a linear field cannot take"),
        ({"when": "soon"}, "is not a time"),
        ({"site": ["a"]}, "column 'site' takes one value, not a list"),
        ({"site": {"a": 1}}, "column 'site' takes one value, not an object"),
        ({"tags": []}, "empty list"),
        ({"tags": ["t1", None]}, "null in it"),
        ({"tags": [["t1"]]}, "takes a list of texts or numbers"),
        ({"tags": {"t1": 1}}, "takes a list of texts or numbers"),
        ({"site": "x" * 1001}, "1,001 letters, and 1,000 is the most"),
        ({"tags": ["t1", "x" * 1001]}, "1,001 letters"),
    ],
)
def test_bad_rows_are_refused_by_their_number(change, said, client, model):
    rows = rows_of(model, 3)
    rows[2] |= change
    found = refusal(client.post("/predict", json={"rows": rows}), 422)
    assert found.startswith("row 3")
    assert said in found


def test_deep_values_are_refused_before_anyone_looks_into_them(client, model):
    value = []
    for _ in range(900):
        value = [value]
    for name in ("site", "tags"):
        row = {**rows_of(model, 1)[0], name: value}
        refusal(client.post("/predict", json={"rows": [row]}), 422)


def test_null_bytes_and_odd_texts_are_values_like_others(client, model):
    (row,) = rows_of(model, 1)
    unseen = predict(client, [{**row, "site": "never seen"}])["predictions"]
    for text in ("\0", "a\0", "'; drop table", "\N{SNOWMAN}" * 300, ""):
        assert predict(client, [{**row, "site": text}])["predictions"] == unseen


def test_columns_that_are_not_read_may_be_there(client, model):
    (row,) = rows_of(model, 1)
    plain = predict(client, [row])
    assert predict(client, [{**row, model.schema.roles[0]: 1}]) == plain


def test_paths_and_methods_and_flags(client):
    assert "GET /nothing" in refusal(client.get("/nothing"), 404)
    answer = client.get("/predict")
    assert answer.headers["allow"] == "POST"
    refusal(answer, 405)
    refusal(client.post("/predict/", json={"rows": []}), 404)
    assert "explain='1'" in refusal(client.post("/predict?explain=1", json={"rows": []}), 422)


def test_time_runs_out(models, model):
    app = create_app(models["plain"], limits=Limits(seconds=0.05))
    rows = [{**row, "hour": f"{k}.0"} for k, row in enumerate(rows_of(model, 5000))]
    with TestClient(app, raise_server_exceptions=False) as client:
        said = refusal(client.post("/predict", json={"rows": rows}), 408)
        assert "0.05 seconds" in said
        predict(client, rows[:1])


def test_rows_are_scored_until_time_runs_out(model, monkeypatch):
    served = Served(model, "id")
    rows = rows_of(model, 1200)
    codes, values = served.code(rows)
    in_time = time.monotonic() + 60
    found = served.predict(rows, codes, values, explain=True, deadline=in_time)
    one = served.predict(
        rows[600:601], codes[600:601], values[600:601], explain=True, deadline=in_time
    )
    assert found[600] == one[0]
    scored = []
    monkeypatch.setattr(Served, "score", lambda *_: scored.append(1) or [])
    with pytest.raises(TimeoutError):
        served.predict(rows, codes, values, explain=False, deadline=0)
    assert len(scored) == 1


def test_a_row_without_a_score_is_named_wherever_it_is():
    with pytest.raises(Refusal, match="row 514 has no finite score"):
        check_finite(np.array([0.0, np.nan]), 512)


def test_a_thread_that_outlives_its_request_keeps_its_room(models):
    endpoints = Endpoints(LiveModel(models["plain"]), Limits(), Metrics(), None)
    may_end = threading.Event()

    async def run():
        room = asyncio.Semaphore(1)
        await room.acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await endpoints._apart(may_end.wait, room=room)
        assert room.locked()
        may_end.set()
        async with asyncio.timeout(20):
            await room.acquire()

    try:
        asyncio.run(run())
    finally:
        may_end.set()
        endpoints.close()


def test_limits_are_more_than_nothing():
    with pytest.raises(SettingError, match="max_rows=0"):
        Limits(max_rows=0)


# What the model is --------------------------------------------------------------------------------


def test_the_schema_describes_every_column(client, model):
    found = client.get("/schema").json()
    assert found["model"]["target"] == model.schema.target.column
    assert found["model"]["task"] == "classes"
    assert found["model"]["classes"] == ["0", "1"]
    columns = {f["column"]: f for f in found["fields"]}
    assert list(columns) == model.schema.columns
    assert [f["kind"] for f in found["fields"]] == [
        "category", "category", "number", "number", "category", "time", "list",
    ]  # fmt: skip
    frame = clicks()
    counts = dict(frame["site"].value_counts().iter_rows())
    assert {t["value"]: t["count"] for t in columns["site"]["top"]} == counts
    assert columns["site"]["usual"] == max(counts, key=counts.get)
    assert columns["site"]["n_categories"] == 5
    assert frame["price"].min() < columns["price"]["least"] < columns["price"]["usual"]
    assert columns["price"]["usual"] < columns["price"]["most"] < frame["price"].max()
    assert columns["age"]["usual"] == pytest.approx(frame["age"].mean())
    assert columns["when"]["fields"] == ["when", "when.weekday", "when.hour"]


@pytest.mark.parametrize("kind", KINDS)
def test_usual_values_are_a_row(kind, clients):
    fields = clients[kind].get("/schema").json()["fields"]
    row = {f["column"]: f["usual"] for f in fields}
    assert math.isfinite(predict(clients[kind], [row])["predictions"][0]["score"])


def test_categories_that_begin_so_come_first(client):
    def find(**query):
        answer = client.get("/categories", params={"field": "site", **query})
        assert answer.status_code == 200, answer.text
        return [c["value"] for c in answer.json()["categories"]]

    every = find()
    counts = dict(clicks()["site"].value_counts().iter_rows())
    assert {*every} == {*counts}
    assert [counts[value] for value in every] == sorted(counts.values(), reverse=True)
    assert sorted(find(q="b")) == ["Bb", "b"]
    assert find(q="bB") == ["Bb"]
    assert find(q="nothing") == []
    assert find(limit=2) == every[:2]
    assert find(q=".*") == []
    by_part = client.get("/categories", params={"field": "when.hour", "q": "1"}).json()
    assert {c["value"] for c in by_part["categories"][:11]} == {"1", *map(str, range(10, 20))}
    assert client.get("/categories", params={"field": "price"}).json()["categories"] == []
    said = refusal(client.get("/categories", params={"field": "sites"}), 422)
    assert "'site'" in said
    for wrong in ("0", "-1", "x", "99999", "²"):
        refusal(client.get("/categories", params={"field": "site", "limit": wrong}), 422)
    refusal(client.get("/categories"), 422)


def test_a_substring_comes_after_a_beginning(tmp_path):
    frame = pl.DataFrame(
        {"word": ["sea"] * 9 + ["seat"] * 5 + ["eat"] * 3 + ["Tea"] * 20, "y": [0, 1] * 18 + [1]}
    )
    from fieldwise import FieldwiseClassifier

    model = FieldwiseClassifier(epochs=1, rank=1).fit(frame.select("word"), frame["y"]).model_
    with TestClient(create_app(model.save(tmp_path / "m"))) as client:
        found = client.get("/categories?field=word&q=ea").json()["categories"]
        assert found == [{"value": "eat", "count": 3}, {"value": "Tea", "count": 20},
                         {"value": "sea", "count": 9}, {"value": "seat", "count": 5}]  # fmt: skip


# Ranking ------------------------------------------------------------------------------------------


def ranked_by_hand(model, context, *, over, k=20):
    """Every category, scored in a row of its own."""
    entries = model.vocabulary[over].entries.filter(pl.col("code") > 0).sort("code")
    column = model.schema[over].column
    rows = [{**context, column: category} for category in entries["category"]]
    z = np.concatenate([model.decision_function(row) for row in rows])
    order = np.argsort(-z, kind="stable")[:k]
    return pl.DataFrame(
        {
            "category": entries["category"].gather(order),
            "score": z[order].astype(float),
            "prediction": model.predictions(z)[order].astype(float),
        }
    )


def test_the_ranking_is_that_of_all_rows(client, model):
    (row,) = rows_of(model, 1)
    context = {c: v for c, v in row.items() if c != "hour"}
    answer = client.post("/rank", json={"context": context, "over": "hour", "k": 5})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["over"] == "hour"
    meant = ranked_by_hand(model, context, over="hour", k=5)
    assert [r["category"] for r in found["ranking"]] == meant["category"].to_list()
    scores = [r["score"] for r in found["ranking"]]
    assert scores == sorted(scores, reverse=True)
    np.testing.assert_allclose(scores, meant["score"], rtol=1e-5, atol=1e-6)
    best = {**row, "hour": found["ranking"][0]["category"]}
    alone = predict(client, [best])["predictions"][0]
    assert alone["score"] == pytest.approx(scores[0], rel=1e-5, abs=1e-6)
    assert alone["prediction"] == pytest.approx(found["ranking"][0]["prediction"], rel=1e-5)


def test_bad_rankings_are_refused(client, model, monkeypatch):
    (row,) = rows_of(model, 1)

    def said(body):
        return refusal(client.post("/rank", json=body), 422)

    assert "'nothing'" in said({"context": row, "over": "nothing"})
    assert "k=0" in said({"context": row, "over": "hour", "k": 0})
    assert "k=True" in said({"context": row, "over": "hour", "k": True})
    assert "'over'" in said({"context": row})
    assert "'context'" in said({"over": "hour"})
    assert "the context has no value for column 'site'" in said({"context": {}, "over": "hour"})
    assert "a column 'sites'" in said({"context": {**row, "sites": 1}, "over": "hour"})
    assert "'more'" in said({"context": row, "over": "hour", "more": 1})
    nothing = np.full((24, 1), np.nan)
    monkeypatch.setattr("fieldwise.ranking._affine_scores", lambda *_: nothing)
    assert "no finite scores" in said({"context": row, "over": "hour"})


# Health, metrics, token, page ---------------------------------------------------------------------


def metric(client, name, **labels) -> float:
    """The sum of a metric's values that have these labels."""
    from prometheus_client.parser import text_string_to_metric_families

    answer = client.get("/metrics")
    assert answer.status_code == 200
    return sum(
        sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_what_happens_is_counted(models, model):
    rows = rows_of(model, 6)
    for row, site in zip(rows, ("new", "a", "new", "b", "newer", None), strict=True):
        row["site"] = site
    frame = clicks(3, 40).select(model.schema.columns).with_columns(hour=pl.lit(99))
    with TestClient(create_app(models["plain"])) as client:
        predict(client, rows[:2])
        predict(client, rows[2:])
        client.post("/predict", content=b"{")
        client.get("/nothing")
        assert send(client, frame).status_code == 200
        assert metric(client, "fieldwise_requests_total", path="/predict", status="200") == 2
        assert metric(client, "fieldwise_requests_total", path="/predict", status="400") == 1
        assert metric(client, "fieldwise_requests_total", path="other", status="404") == 1
        assert metric(client, "fieldwise_request_seconds_count", path="/predict") == 3
        assert metric(client, "fieldwise_rows_total", path="/predict") == 6
        assert metric(client, "fieldwise_rows_total", path="/predict/batch") == 40
        assert metric(client, "fieldwise_unseen_values_total", field="site") == 3
        assert metric(client, "fieldwise_unseen_values_total", field="hour") == 40
        assert metric(client, "fieldwise_model_loads_total") == 1
        assert metric(client, "fieldwise_model_refusals_total") == 0
        id = client.get("/ready").json()["model"]
        assert metric(client, "fieldwise_model_info", model=id) == 1


def test_unseen_values_are_counted_where_they_are_rare(clients, models):
    client = clients["rare"]
    rows = rows_of(FieldwiseModel.load(models["rare"]), 4)
    rows[0]["site"], rows[1]["tags"], rows[2]["hour"] = "new", ["t1", "new"], "77"
    before = {f: metric(client, "fieldwise_unseen_values_total", field=f) for f in rows[0]}
    predict(client, rows)
    predict(client, rows)
    for name in rows[0]:
        more = 2 if name in ("site", "tags", "hour") else 0
        assert metric(client, "fieldwise_unseen_values_total", field=name) == before[name] + more


def test_a_token_is_wanted(models, model, monkeypatch):
    monkeypatch.setenv("FIELDWISE_TOKEN", "s3cret")
    with TestClient(create_app(models["plain"])) as client:
        rows = rows_of(model, 1)
        for path in ("/health", "/ready", "/"):
            assert client.get(path).status_code == 200
        for wrong in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}):
            for path in ("/schema", "/metrics", "/openapi.json", "/categories", "/nothing"):
                answer = client.get(path, headers=wrong)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "token" in refusal(answer, 401)
            refusal(client.post("/predict", json={"rows": rows}, headers=wrong), 401)
        right = {"Authorization": "Bearer s3cret"}
        assert client.post("/predict", json={"rows": rows}, headers=right).status_code == 200


def test_what_is_wrong_is_told_to_who_has_the_token(tmp_path, model):
    path = model.save(tmp_path / "m")
    with TestClient(create_app(path, token="s3cret", poll=0.02)) as client:
        (path / "model.json").write_bytes(b"rubbish")
        wait_for(lambda: client.get("/health").json()["status"] == "degraded")
        for wrong in ({}, {"Authorization": "Bearer s3cre"}):
            assert client.get("/health", headers=wrong).json()["problem"] is None
        right = {"Authorization": "Bearer s3cret"}
        assert str(path) in client.get("/health", headers=right).json()["problem"]


def test_the_page_may_load_nothing_from_elsewhere(client):
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "http" not in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_openapi_description_is_of_this_model(client, model):
    found = client.get("/openapi.json").json()
    row = found["components"]["schemas"]["Row"]
    assert row["required"] == model.schema.columns
    assert set(row["properties"]) == {*model.schema.columns, *model.schema.roles}
    assert "/predict" in found["paths"]
    for path, methods in found["paths"].items():
        for about in methods.values():
            assert ("401" in about["responses"]) == ("security" in about), path
            assert about.get("security", [{"token": []}, {}]) == [{"token": []}, {}]
    assert json.dumps(found).count("HTTPValidationError") == 0


# Another model ------------------------------------------------------------------------------------


def wait_for(what, seconds=20.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_a_new_model_takes_over_and_a_broken_one_does_not(tmp_path, model):
    path = model.save(tmp_path / "m")
    other = fitted("plain", seed=1)
    rows = rows_of(model, 4)
    meant = {}
    with TestClient(create_app(path, poll=0.02)) as client:

        def id():
            return client.get("/ready").json()["model"]

        def health():
            return client.get("/health").json()

        first = id()
        meant[first] = [float(z) for row in rows for z in model.decision_function(row)]
        assert health()["status"] == "ok"
        other.save(path, overwrite=True)
        wait_for(lambda: id() != first)
        second = id()
        found = predict(client, rows)
        assert found["model"] == second
        z = [float(z) for row in rows for z in other.decision_function(row)]
        np.testing.assert_allclose([f["score"] for f in found["predictions"]], z, rtol=1e-6)
        assert client.get("/schema").json()["model"]["id"] == second
        assert metric(client, "fieldwise_model_info", model=first) == 0
        assert metric(client, "fieldwise_model_info", model=second) == 1

        for k, break_it in enumerate(BREAKS):
            break_it(path)
            wait_for(lambda k=k: metric(client, "fieldwise_model_refusals_total") == k + 1)
            assert health()["status"] == "degraded"
            assert str(path) in health()["problem"]
            assert predict(client, rows) == found
            other.save(path, overwrite=True)
            wait_for(lambda: health()["status"] == "ok")
        os.rename(path, tmp_path / "away")
        wait_for(lambda: health()["status"] == "degraded")
        assert predict(client, rows) == found
        os.rename(tmp_path / "away", path)
        wait_for(lambda: health()["status"] == "ok")
        assert metric(client, "fieldwise_model_loads_total") == 2


def _cut(path):
    file = path / "table.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _rewrite(path):
    header = json.loads((path / "model.json").read_text())
    header["checksums"]["../../secret"] = 7
    from fieldwise.files import sealed

    header.pop("checksum")
    (path / "model.json").write_bytes(sealed(header))


BREAKS = [
    _cut,
    lambda path: (path / "model.json").write_bytes(b"rubbish"),
    lambda path: (path / "model.json").write_bytes(b"[" * 100_000),
    lambda path: (path / "model.json").write_text("{}"),
    _rewrite,
]


def test_a_folder_that_is_no_model_is_never_ready(tmp_path):
    live = LiveModel(tmp_path)
    assert not live.look()
    assert "is not there" in live.problem
    (tmp_path / "model.json").mkdir()
    assert not live.look()
    live.close()


def test_a_model_that_is_missing_is_an_error_at_once(tmp_path):
    with pytest.raises(ModelError, match="is not there"), TestClient(create_app(tmp_path / "m")):
        pass


def test_a_broken_folder_leaves_the_copy_of_another_worker(tmp_path, model):
    path, spool = model.save(tmp_path / "m"), tmp_path / "spool"
    first = LiveModel(path, spool).load()
    (path / "model.json").write_bytes(b"rubbish")
    late = LiveModel(path, spool)
    assert late.load().id == first.id
    assert str(path) in late.problem
    shutil.rmtree(path)
    assert LiveModel(path, spool).load().id == first.id


def test_a_copy_that_was_cleaned_away_is_made_anew(tmp_path, model):
    path, spool = model.save(tmp_path / "m"), tmp_path / "spool"
    live = LiveModel(path, spool)
    (spool / live.load().id / "table.safetensors").unlink()
    assert LiveModel(path, spool).load().id == live.now.id
    shutil.rmtree(spool)
    fitted("plain", seed=1).save(path, overwrite=True)
    assert live.look()
    assert spool.stat().st_mode & 0o777 == 0o700


def test_what_the_disk_is_to_blame_for_passes(tmp_path, model, monkeypatch):
    live = LiveModel(model.save(tmp_path / "m"), tmp_path / "spool")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("fieldwise.serve.live.shutil.copyfile", full)
        assert not any(live.look() for _ in range(3))
        assert "No space left" in live.problem
        assert live.n_refusals == 1
    assert live.look()
    assert live.problem is None


def test_a_file_of_holes_is_not_copied_until_the_disk_is_full(tmp_path, model):
    live = LiveModel(model.save(tmp_path / "m"), tmp_path / "spool")
    free = shutil.disk_usage(tmp_path).free
    os.truncate(tmp_path / "m" / "table.safetensors", min(2 * free, (1 << 44) - 4096))
    assert not any(live.look() for _ in range(2))
    assert "more than is free" in live.problem
    assert live.n_refusals == 1
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_link_that_leads_nowhere_is_no_file_of_the_model(tmp_path, model):
    path = model.save(tmp_path / "m")
    (path / "notes").symlink_to(tmp_path / "nowhere")
    live = LiveModel(path, tmp_path / "spool")
    assert live.load()
    assert live.problem is None


# The docs -----------------------------------------------------------------------------------------


def test_the_docs_name_what_there_is(client):
    text = (Path(__file__).parents[1] / "docs" / "serving.md").read_text()
    paths = [p for p in client.get("/openapi.json").json()["paths"] if "." not in p or "json" in p]
    assert [p for p in paths if f"`{p}" not in text and f" {p}" not in text] == []
    told = set(re.findall(r"fieldwise_\w+", text))
    shown = set(re.findall(r"^# TYPE (fieldwise_\w+)", client.get("/metrics").text, re.MULTILINE))
    assert {name for name in shown if not name.endswith("_created")} == told
    given = [name for name in inspect.signature(serve).parameters if name != "model"]
    options = [f"--{name.replace('_', '-')}" for name in given]
    assert [option for option in options if option not in text] == []
