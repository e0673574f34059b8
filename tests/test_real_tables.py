"""The bundled flights, and real tables beside the checkout where they are (never committed)."""

from __future__ import annotations

from collections import Counter
from math import floor, log
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fieldwise import encode, load_flights
from fieldwise.data.encoding import load_vocabulary
from fieldwise.data.inferring import infer_schema
from fieldwise.data.profiling import profile
from fieldwise.data.readers import open_source

TABLES = Path(__file__).parents[2] / "shared" / "data"


def real(name: str) -> Path:
    path = TABLES / name
    if not path.exists():
        pytest.skip(f"{name} is not on this machine; its terms do not allow bundling it")
    return path


def test_flights_are_bundled_without_leaks():
    frame = load_flights()
    assert frame.shape == (327_346, 19)
    assert frame["late"].mean() == pytest.approx(0.245, abs=0.001)
    leaks = {"arr_delay", "dep_delay", "air_time", "arr_time", "dep_time"}
    assert not leaks & set(frame.columns)
    schema = infer_schema(profile(open_source(frame)), target="late")
    assert len(schema) == 18
    assert {f.kind for f in schema.fields} == {"category"}


def plain_codes(path: Path, separator: str, columns: list[int], min_count: int, numbers: int):
    """What encoding means, in plain Python: count, sort, look up."""
    lines = [line.split(separator) for line in path.read_text().splitlines()]
    table = []
    for j in columns:
        keys: list[int | str | None] = []
        for line in lines:
            cell: int | str | None = line[j] or None
            if cell is not None and j in range(1, 1 + numbers):
                v = int(cell)
                cell = floor(log(v) ** 2) if v > 2 else v - 2
            keys.append(cell)
        counts = Counter(keys)
        own = [k for k in counts if counts[k] >= min_count]
        own.sort(key=lambda k: (-counts[k], (0, 0) if k is None else (1, k)))
        code = {k: i for i, k in enumerate(own, start=1)}
        table.append([code.get(k, 0) for k in keys])
    return np.array(table).T, np.array([float(line[0]) for line in lines])


def test_raw_criteo(tmp_path):
    path = real("criteo/train.txt")
    store = encode(path, tmp_path / "s", format="criteo")
    codes, labels = plain_codes(path, "\t", list(range(1, 40)), 35, numbers=13)
    found = store.read(0, store.n_rows)
    assert store.n_rows == 12_768
    assert np.array_equal(found["codes"], codes)
    assert np.array_equal(found["target"][:, 0], labels)


def test_raw_avazu(tmp_path):
    path = real("avazu/train.csv")
    store = encode(path, tmp_path / "s", format="avazu")
    body = tmp_path / "body.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    body.write_text("\n".join(",".join(r[1:]) for r in rows))
    codes, labels = plain_codes(body, ",", list(range(1, 23)), 4, numbers=0)
    found = store.read(0, store.n_rows)
    assert store.n_rows == 9_999
    assert np.array_equal(found["codes"], codes)
    assert np.array_equal(found["target"][:, 0], labels)
    assert store.schema.names[0] == "hour"


@pytest.mark.parametrize(
    ("name", "drop", "fields"),
    [
        ("frappe/train.parquet", ["resampled_item"], 10),
        (
            "hotel/data.parquet",
            ["is_canceled", "reservation_status", "reservation_status_date"],
            29,
        ),
        ("unvotes/data.parquet", ["vote", "short", "unres", "country_code"], 9),
        ("access/data.parquet", [], 9),
        ("incidents/data.parquet", ["number", "opened_at"], 17),
    ],
)
def test_real_tables_need_no_preparation(tmp_path, name, drop, fields):
    path = real(name)
    store = encode(path, tmp_path / "s", target="label", drop=drop)
    frame = pl.read_parquet(path)
    assert store.n_rows == frame.height
    assert len(store.schema) == fields
    assert np.array_equal(
        store.read(0, store.n_rows)["target"][:, 0], frame["label"].cast(pl.Float32).to_numpy()
    )
    # Codes say the same as values: decoding gives back every category that is not rare.
    words = load_vocabulary(store)
    decoded = words.decode(store.read(0, store.n_rows)["codes"])
    for field in store.schema.fields:
        if field.kind == "category" and field.part is None:
            found, wanted = decoded[field.name], frame[field.column]
            kept = found.is_not_null()
            cast = wanted.cast(found.dtype) if wanted.dtype != pl.String else wanted
            if field.dtype == "boolean":
                cast = cast.str.to_lowercase() == "true"
            elif wanted.dtype == pl.String and field.dtype == "integer":
                cast = cast.cast(pl.Int64)
            assert found.filter(kept).equals(cast.filter(kept), check_names=False)
            rare = int(words[field.name].counts()[0])
            assert found.null_count() == wanted.null_count() + rare
