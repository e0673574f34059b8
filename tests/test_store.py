"""The store: what goes in comes out, whole or not at all."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import DataError, FieldEncoder, SchemaError, SettingError, StoreError, encode
from fieldwise.data import store as store_module
from fieldwise.data.encoding import load_vocabulary
from fieldwise.data.schema import Field, Schema, Target
from fieldwise.data.store import Store, StoreWriter
from fieldwise.files import sealed
from fieldwise.fitting import fit_store, train_table

SCHEMA = Schema(fields=(Field(name="a"), Field(name="b"), Field(name="c")))
COUNTS = [np.ones(99, np.int64)] * 3


def rows(n, seed=0):
    random = np.random.default_rng(seed)
    codes = random.integers(-1, 99, (n, 3)).astype(np.int32)
    return {"codes": codes, "target": random.random((n, 1), dtype=np.float32)}


def make(path, n=1000, **settings) -> Store:
    with StoreWriter.create(path, {"codes": 3, "target": 1}, **settings) as writer:
        for part in np.array_split(np.arange(n), 3):
            writer.write(**{k: a[part] for k, a in rows(n).items()})
        writer.finish(SCHEMA, b"words", COUNTS)
    return Store(path)


def same(store: Store, expected) -> bool:
    found = store.read(0, store.n_rows)
    return set(found) == set(expected) and all(
        np.array_equal(found[k], expected[k]) for k in expected
    )


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(store_module, "BLOCK_ROWS", 64)


def test_round_trip(tmp_path):
    store = make(tmp_path / "s")
    store.verify()
    assert same(store, rows(1000))
    assert isinstance(store.array("codes"), np.memmap)
    assert store.vocabulary_bytes() == b"words"
    assert store.schema == SCHEMA
    assert len(store) == 1000


@given(st.lists(st.integers(0, 200), min_size=1, max_size=5))
def test_append_is_the_same_as_writing_at_once(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("s")
    whole = rows(sum(sizes))
    ends = np.cumsum(sizes)
    with StoreWriter.create(folder / "a", {"codes": 3, "target": 1}) as writer:
        writer.write(**{k: a[: sizes[0]] for k, a in whole.items()})
        writer.finish(SCHEMA, b"words", COUNTS)
    store = Store(folder / "a")
    for start, stop in pairwise(ends):
        store = store.append(**{k: a[start:stop] for k, a in whole.items()})
    with StoreWriter.create(folder / "b", {"codes": 3, "target": 1}) as writer:
        writer.write(**whole)
        writer.finish(SCHEMA, b"words", COUNTS)
    assert same(store, whole)
    at_once = Store(folder / "b")
    assert (
        store.header["arrays"]["codes"]["checksums"]
        == (at_once.header["arrays"]["codes"]["checksums"])
    )
    store.verify()


def test_an_open_store_survives_an_append(tmp_path):
    before = make(tmp_path / "s")
    before.append(**rows(50, seed=1))
    assert same(before, rows(1000))
    assert same(
        Store(tmp_path / "s"),
        {k: np.concatenate([rows(1000)[k], rows(50, seed=1)[k]]) for k in ("codes", "target")},
    )


def test_appending_to_a_store_that_has_changed_is_refused(tmp_path):
    store = make(tmp_path / "s")
    store.append(**rows(50, seed=1))
    with pytest.raises(StoreError, match="has changed since it was opened"):
        store.append(**rows(50, seed=1))
    with pytest.raises(StoreError, match="open it again"):
        store.vocabulary_bytes()
    assert Store(tmp_path / "s").append(**rows(50, seed=1)).n_rows == 1100
    with pytest.raises(StoreError, match="rows 0 to 2000"):
        Store(tmp_path / "s").read(0, 2000)


def test_it_is_not_overwritten_unless_asked(tmp_path):
    make(tmp_path / "s")
    with pytest.raises(StoreError, match="holds a store already"):
        make(tmp_path / "s", n=10)
    assert make(tmp_path / "s", n=10, overwrite=True).n_rows == 10
    assert sorted(p.name.split("-")[0] for p in (tmp_path / "s").iterdir()) == [
        "codes",
        "counts",
        "header.json",
        "target",
        "vocabulary",
    ]


def test_other_peoples_files_are_left_alone(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match="other files"):
        make(tmp_path / "s")
    (tmp_path / "f").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        make(tmp_path / "f")
    assert (tmp_path / "s" / "thesis.txt").read_text() == "years of work"
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("target.parquet", "weight.bin", "codes-old.bin", ".notes.tmp"):
        (mine / name).write_text(name)
    with pytest.raises(StoreError, match="other files"):
        make(mine)
    assert len(list(mine.iterdir())) == 4


def test_an_error_while_writing_leaves_nothing(tmp_path):
    with (
        pytest.raises(RuntimeError),
        StoreWriter.create(tmp_path / "s", {"codes": 3, "target": 1}) as writer,
    ):
        writer.write(**rows(10))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_overwriting_or_appending_leaves_what_was(tmp_path):
    make(tmp_path / "s")
    files = sorted(p.name for p in (tmp_path / "s").iterdir())
    with (
        pytest.raises(RuntimeError),
        StoreWriter.create(tmp_path / "s", {"codes": 9}, overwrite=True) as writer,
    ):
        writer.write(codes=np.zeros((5, 9)))
        raise RuntimeError
    with pytest.raises(RuntimeError), StoreWriter.append(Store(tmp_path / "s")) as writer:
        writer.write(**rows(500))
        raise RuntimeError
    assert same(Store(tmp_path / "s"), rows(1000))
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == files
    assert same(Store(tmp_path / "s").append(**rows(0)), rows(1000))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["codes-1.bin", "target-1.bin", "vocabulary-1.parquet"])
@pytest.mark.parametrize("where", [0, 0.5, -1])
def test_a_flipped_byte_is_found(tmp_path, name, where):
    make(tmp_path / "s")
    file = tmp_path / "s" / name
    flip(file, where if isinstance(where, int) else int(file.stat().st_size * where))
    with pytest.raises(StoreError, match=f"{name}.*altered"):
        Store(tmp_path / "s").verify()


def test_a_flipped_byte_is_found_where_it_is_read_and_not_before(tmp_path):
    make(tmp_path / "s")
    flip(tmp_path / "s" / "codes-1.bin", 12 * 500)
    store = Store(tmp_path / "s")
    store.read(0, 64)
    with pytest.raises(StoreError, match="rows 448 to 512"):
        store.read(490, 510)


def test_any_flipped_byte_of_the_header_is_found(tmp_path):
    make(tmp_path / "s", n=10)
    file = tmp_path / "s" / "header.json"
    whole = file.read_bytes()
    for position in range(len(whole)):
        flip(file, position)
        try:
            body = json.loads(file.read_bytes())
        except ValueError:
            body = None
        if body != json.loads(whole):
            with pytest.raises((StoreError, SchemaError), match="header.json"):
                Store(tmp_path / "s")
        file.write_bytes(whole)


@pytest.mark.parametrize("name", ["codes-1.bin", "target-1.bin"])
def test_a_store_cut_short(tmp_path, name):
    make(tmp_path / "s")
    file = tmp_path / "s" / name
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size - 1)
    with pytest.raises(StoreError, match=f"{name} is cut short"):
        Store(tmp_path / "s")
    file.unlink()
    with pytest.raises(StoreError, match=f"{name} is cut short: 0 bytes"):
        Store(tmp_path / "s")


def test_not_a_store(tmp_path):
    with pytest.raises(StoreError, match="is not a folder"):
        Store(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"has no header.json.*fieldwise encode"):
        Store(tmp_path)


def test_a_store_of_a_newer_format(tmp_path):
    make(tmp_path / "s")
    file = tmp_path / "s" / "header.json"
    body = json.loads(file.read_bytes())
    file.write_text(json.dumps({**body, "format": 99}))
    with pytest.raises(StoreError, match="format 99.*upgrade"):
        Store(tmp_path / "s")


def test_a_store_of_another_schema(tmp_path):
    store = make(tmp_path / "s")
    other = Schema(fields=(Field(name="a"), Field(name="b"), Field(name="d")))
    with pytest.raises(StoreError, match=r"another schema.*'d'.*'c'"):
        store.require(other)
    with pytest.raises(StoreError, match="another schema"):
        store.append(schema=other, **rows(3))
    store.require(SCHEMA)
    assert same(Store(tmp_path / "s"), rows(1000))


def test_rows_that_do_not_fit(tmp_path):
    store = make(tmp_path / "s")
    with pytest.raises(StoreError, match="a row needs"):
        store.append(codes=np.zeros((2, 3)))
    with pytest.raises(StoreError, match="codes has 2 columns"):
        store.append(codes=np.zeros((1, 2)), target=np.zeros((1, 1)))


def table(n=3000, seed=0) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "city": [f"city{k}" for k in random.zipf(1.5, n) % 50],
            "price": random.normal(size=n),
            "shop": random.integers(0, 9, n),
            "age": random.normal(size=n),
            "w": random.random(n),
            "bought": random.choice(["no", "yes"], n),
        }
    )


def test_encode_gives_the_encoders_codes(tmp_path):
    frame = table()
    settings = {"kinds": {"age": "linear"}, "min_count": 3}
    store = encode(frame, tmp_path / "s", target="bought", weight="w", **settings)
    encoder = FieldEncoder(drop=["bought", "w"], **settings).fit(frame)
    codes = encoder.transform(frame)
    found = store.read(0, store.n_rows)
    assert np.array_equal(found["codes"][:, :3], codes[:, :3])
    assert np.array_equal(found["values"][:, 0], codes[:, 3].astype(np.float32))
    assert found["target"][:, 0].tolist() == [float(v == "yes") for v in frame["bought"]]
    assert np.array_equal(found["weight"][:, 0], frame["w"].to_numpy())
    assert store.schema.target.classes == ("no", "yes")
    assert load_vocabulary(store).sizes == encoder.vocabulary_.sizes
    assert load_vocabulary(store).schema.fields == encoder.schema_.fields


def test_encode_append_grows_the_vocabulary_and_moves_no_code(tmp_path):
    first, second = table(), table(seed=1).with_columns(pl.lit("newtown").alias("city"))
    store = encode(first, tmp_path / "s", target="bought", drop=["w"])
    before = store.read(0, 3000)["codes"].copy()
    store = encode(second, tmp_path / "s", append=True)
    assert store.n_rows == 6000
    assert np.array_equal(store.read(0, 3000)["codes"], before)
    words = load_vocabulary(store)["city"]
    assert words.labels()[-1] == "newtown"
    assert set(store.read(3000, 6000)["codes"][:, 0].tolist()) == {words.size - 1}
    encoder = FieldEncoder(schema=store.schema)
    assert encoder.fit(first).schema_["price"].edges == store.schema["price"].edges


def test_encode_append_refuses_another_table(tmp_path):
    encode(table(), tmp_path / "s", target="bought", drop=["w"])
    with pytest.raises(SchemaError, match="'city'"):
        encode(table().drop("city"), tmp_path / "s", append=True)
    with pytest.raises(DataError, match=r"row 1: target 'bought' holds 'maybe', which is not one"):
        changed = table().with_columns(pl.lit("maybe").alias("bought"))
        encode(changed, tmp_path / "s", append=True)
    assert Store(tmp_path / "s").n_rows == 3000


def test_append_takes_the_schema_the_store_was_made_with(tmp_path):
    schema = Schema(
        fields=(Field(name="city"), Field(name="price", kind="numeric")),
        targets=(Target(column="bought", dtype="string"),),
    )
    encode(table(), tmp_path / "s", schema=schema)
    assert encode(table(), tmp_path / "s", schema=schema, append=True).n_rows == 6000
    other = Schema(fields=schema.fields[:1], targets=schema.targets)
    with pytest.raises(StoreError, match="another schema"):
        encode(table(), tmp_path / "s", schema=other, append=True)


def test_rows_with_one_value_of_a_numeric_target_can_be_appended(tmp_path):
    frame = table().select("city", y="price")
    store = encode(frame, tmp_path / "s", target="y")
    assert encode(frame.head(1), tmp_path / "s", append=True).n_rows == store.n_rows + 1


def test_large_targets_are_kept(tmp_path):
    values = [1e39, 2.0**24 + 1, -1e300, 0.1]
    frame = pl.DataFrame({"a": ["x"] * 4, "y": values, "w": [1e39, 1.0, 1e-12, 0.0]})
    found = encode(frame, tmp_path / "s", target="y", weight="w").read(0, 4)
    assert found["target"][:, 0].tolist() == values
    assert found["weight"][:, 0].tolist() == frame["w"].to_list()


@pytest.mark.parametrize(
    "settings",
    [
        {"target": "city"},
        {"weight": "w"},
        {"drop": ["shop"]},
        {"kinds": {"shop": "numeric"}},
        {"overwrite": True},
        {"min_count": 9},
    ],
    ids=str,
)
def test_nothing_said_beside_a_fixed_schema_is_left_aside(tmp_path, settings):
    store = encode(table(), tmp_path / "s", target="bought", drop=["w"])
    with pytest.raises(SettingError):
        encode(table(), tmp_path / "s", append=True, **settings)
    if "overwrite" not in settings:
        with pytest.raises(SettingError):
            encode(table(), tmp_path / "t", schema=store.schema, **settings)
    assert encode(table(), tmp_path / "s", append=True, target="bought").n_rows == 6000


@pytest.mark.parametrize("missing", ["schema", "n_rows", "arrays", "block_rows"])
def test_a_sealed_header_without_a_part(tmp_path, missing):
    make(tmp_path / "s")
    body = Store(tmp_path / "s").header
    body = {k: v for k, v in body.items() if k != missing}
    (tmp_path / "s" / "header.json").write_bytes(sealed(body))
    with pytest.raises(StoreError, match="header.json is damaged"):
        Store(tmp_path / "s")


@pytest.fixture
def far(tmp_path, monkeypatch):
    """A file system that is not this machine's, and an empty cache."""
    fsspec = pytest.importorskip("fsspec", reason="the package fsspec is not installed")
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    return system


def test_a_store_on_another_file_system(tmp_path, far):
    """Sent whole, its header last; read through one copy, which the next one shares."""
    table = pl.DataFrame({"a": list("xyxz") * 50, "n": range(200), "late": [0, 1] * 100})
    near = encode(table, tmp_path / "near", target="late")
    store = encode(table, "memory://bucket/far", target="late")
    assert store.n_rows == 200
    for name in near.names:
        assert np.array_equal(store.array(name), near.array(name))
    assert far.exists("/bucket/far/header.json")
    copies = list((tmp_path / "cache" / "stores").iterdir())
    assert [store.path] == copies
    assert Store("memory://bucket/far").path == store.path
    shutil.rmtree(store.path)
    assert Store("memory://bucket/far/").n_rows == 200  # fetched again
    with pytest.raises(SettingError, match="lost a slash as a Path"):
        encode(table, Path("memory://bucket/near"), target="late")
    with pytest.raises(StoreError, match="holds a store already"):
        encode(table, "memory://bucket/far", target="late")
    other = encode(table.head(100), "memory://bucket/far", target="late", overwrite=True)
    assert Store("memory://bucket/far").n_rows == other.n_rows == 100
    model = fit_store(Store("memory://bucket/far"), rank=2)
    assert model.settings["rows"] > 0
    train_table("memory://bucket/far", tmp_path / "m", rank=2)
    assert (tmp_path / "m").is_dir()


def test_two_copies_of_a_store_at_once(tmp_path, far, monkeypatch):
    """Two threads, or hosts that share a cache and the numbers of processes, copy it each."""
    table = pl.DataFrame({"a": list("xyxz") * 50, "late": [0, 1] * 100})
    store = encode(table, "memory://bucket/far", target="late")
    shutil.rmtree(store.path)
    get, both = type(far).get_file, threading.Barrier(2, timeout=60)
    begun, one_at_a_time = set(), threading.Lock()  # files of memory have one position for all

    def slow(self, *names, **more):
        if threading.get_ident() not in begun:
            begun.add(threading.get_ident())
            both.wait()  # each has a folder to fill
        with one_at_a_time:
            return get(self, *names, **more)

    monkeypatch.setattr(type(far), "get_file", slow)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: Store("memory://bucket/far"), range(2)))
    assert [one.n_rows for one in found] == [200, 200]
    assert list((tmp_path / "cache" / "stores").iterdir()) == [store.path]


def test_a_copy_that_came_short_is_not_kept(far, monkeypatch):
    store = encode({"a": list("xyxz") * 50, "late": [0, 1] * 100}, "memory://b/far", target="late")
    shutil.rmtree(store.path)

    def short(self, name, there, **_):
        Path(there).write_bytes(self.cat_file(name)[:-1])

    with monkeypatch.context() as patch:
        patch.setattr(type(far), "get_file", short)
        with pytest.raises(StoreError, match=r"codes-1\.bin: 799 bytes of 800 came\. Try again"):
            Store("memory://b/far")
    assert Store("memory://b/far").n_rows == 200


def test_a_store_elsewhere_that_cannot_be_read(far):
    with pytest.raises(StoreError, match="memory://bucket/none is not a store"):
        Store("memory://bucket/none")
    with pytest.raises(StoreError, match="cannot be opened"):
        Store("nowhere://bucket/none")
    far.pipe_file("/bucket/bad/header.json", b"{}")
    with pytest.raises(StoreError, match="damaged"):
        Store("memory://bucket/bad")
    body = {"arrays": {"codes": {"file": "../../secret"}}}
    body |= {"vocabulary": {"file": "v"}, "counts": {"file": "c"}}
    far.pipe_file("/bucket/bad/header.json", json.dumps(body).encode())
    with pytest.raises(StoreError, match=r"names '\.\./\.\./secret'"):
        Store("memory://bucket/bad")
    body["arrays"] = {"codes": {"file": "codes-0.bin"}}
    far.pipe_file("/bucket/bad/header.json", json.dumps(body).encode())
    with pytest.raises(StoreError, match="is missing"):
        Store("memory://bucket/bad")
