"""Stores, checkpoints and models on disk: any bytes of theirs altered, or their headers altered and
sealed again, so that all checksums fit and the content is hostile."""

from __future__ import annotations

import io
import json
import shutil
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import polars as pl

from fieldwise import FieldwiseModel, Store, encode
from fieldwise import checkpoint as checkpoints
from fieldwise.data.encoding import load_vocabulary
from fieldwise.data.schema import Schema
from fieldwise.files import checksum, read_sealed, sealed
from fieldwise.packed import pack
from serving import clicks, fitted, rows_of

from .draws import Draw

__all__ = ["SEEDS", "TARGETS"]


@cache
def scratch() -> Path:
    return Path(mkdtemp(prefix="folders-"))


@cache
def content(make: Callable[[Path], Any]) -> dict[str, bytes]:
    """The files of a folder as they should be."""
    folder = scratch() / make.__name__
    make(folder)
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def folder_of(files: dict[str, bytes]) -> Path:
    path = scratch() / "altered"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, given in files.items():
        (path / name).write_bytes(given)
    return path


def resealed(body: Any) -> bytes | None:
    """A header whose checksum fits; None of what cannot be written."""
    try:
        return sealed(body)
    except (UnicodeEncodeError, TypeError):
        return None


def header(files: dict[str, bytes], name: str) -> dict[str, Any]:
    body = json.loads(files[name])
    del body["checksum"]
    return body


# Sealed headers -----------------------------------------------------------------------------------


def sealed_header(data: bytes) -> None:
    """Any bytes as a header; or any JSON, sealed, which reads as it was."""
    file = scratch() / "header.json"
    body = None
    if data[:1] < b"\x80":
        file.write_bytes(data)
    else:
        draw = Draw(data[1:])
        body = {"format": draw.pick((1, 1, 1, 0, -5)), "a": draw.json(), draw.text(): draw.json()}
        content = resealed(body)
        file.write_bytes(content if content is not None and draw.below(8) else draw.rest())
    found = read_sealed(file, newest=1, what="thing")
    assert type(found["format"]) is int
    if body is not None:
        assert json.dumps(found, sort_keys=True) == json.dumps(body, sort_keys=True)


def schema(data: bytes) -> None:
    """Any JSON as a schema: what is taken makes the round trip."""
    draw = Draw(data)
    body = draw.edited(header(content(_store), "header.json")["schema"], 4)
    found = Schema.from_dict(body)
    assert Schema.from_json(found.to_json()) == found
    assert found.columns is not None
    assert len(found.slots) == len(found)


# Stores -------------------------------------------------------------------------------------------


def _store(path: Path) -> None:
    frame = clicks(3, 60)
    encode(frame, path, target="click", drop=["level", "amount"], kinds={"age": "linear"})


@cache
def whole_store() -> tuple[list[tuple[Any, ...]], list[int]]:
    _, files = None, content(_store)
    store = Store(folder_of(files))
    return read_store(store)


def read_store(store: Store) -> Any:
    arrays = store.read(0, store.n_rows)
    words = load_vocabulary(store)
    decoded = words.decode(arrays["codes"], arrays.get("values"))
    return {k: a.tolist() for k, a in arrays.items()}, decoded.rows(), words.sizes


def altered_store(data: bytes) -> None:
    """A byte of any file: refused, or nothing else is read."""
    draw = Draw(data)
    files = dict(content(_store))
    name = draw.pick(sorted(files))
    files[name] = draw.altered(files[name])
    store = Store(folder_of(files))
    store.verify()
    assert read_store(store) == whole_store(), f"{name} altered, and something else is read"


def sealed_store(data: bytes) -> None:
    """A header that is another, with checksums that fit."""
    draw = Draw(data)
    files = dict(content(_store))
    body = header(files, "header.json")
    if draw.coin():
        array = draw.pick(("codes", "values", "target"))
        name = body["arrays"][array]["file"]
        files[name] = draw.altered(files[name], 8).ljust(len(files[name]), b"\1")
        sums = [zlib.crc32(files[name])]
        body["arrays"][array]["checksums"] = sums
    if draw.coin():
        body["vocabulary"], files = hostile_words(draw, body["vocabulary"], files)
    if draw.below(4):
        body = draw.edited(body)
    files["header.json"] = resealed(body) or b""
    store = Store(folder_of(files))
    store.verify()
    read_store(store)
    store.counts()


def hostile_words(draw: Draw, said: dict[str, Any], files: dict[str, bytes]) -> Any:
    name = said["file"]
    files = {**files, name: words(draw, files[name])}
    return {**said, "checksum": zlib.crc32(files[name])}, files


def words(draw: Draw, given: bytes) -> bytes:
    """A vocabulary, or other Parquet of ours, in which some values are others."""
    frame = pl.read_parquet(io.BytesIO(given))
    for _ in range(1 + draw.below(3)):
        column = draw.pick(frame.columns)
        how = draw.below(6)
        row = draw.below(frame.height)
        if how == 0:
            frame = pl.concat([frame.head(row), frame.tail(frame.height - row - 1)])
        elif how == 1:
            frame = pl.concat([frame, frame.slice(row, 1)])
        elif how == 2:
            frame = frame.drop(column)
        elif how == 3 and not frame[column].dtype.is_nested():
            frame = frame.cast({column: draw.pick((pl.String, pl.Int8, pl.Float64))}, strict=False)
        else:
            values = frame[column].to_list()
            values[row] = draw.pick((None, -1, -2, 0, 1, 10**6, 2**31 - 1, "a", "", 1.5))
            made = pl.Series(column, values, strict=False)
            frame = frame if made.dtype == pl.Object else frame.with_columns(made)
        if not frame.width or not frame.height:
            break
    out = io.BytesIO()
    try:
        frame.write_parquet(out)
    except pl.exceptions.PolarsError:  # there is no such Parquet
        return given
    return out.getvalue()


# Checkpoints --------------------------------------------------------------------------------------


def _checkpoint(path: Path) -> None:
    arrays = {
        "table": np.arange(60, dtype=np.float32).reshape(20, 3),
        "totals": np.ones(2),
        "empty": np.zeros((0, 3), np.float32),
    }
    checkpoints.save(path, {"identity": {"seed": 1}, "n_steps": 3, "history": [{}]}, arrays)


def checkpoint(data: bytes) -> None:
    draw = Draw(data)
    files = dict(content(_checkpoint))
    whole = checkpoints.load(folder_of(files))
    assert whole is not None
    is_sealed = draw.coin()
    if is_sealed:
        body = draw.edited(header(files, "checkpoint.json"))
        files["checkpoint.json"] = resealed(body) or b""
    else:
        name = draw.pick(sorted(files))
        files[name] = draw.altered(files[name])
    found = checkpoints.load(folder_of(files))
    assert found is not None
    for name, array in found[1].items():
        assert array.dtype.kind in "biuf", (name, array.dtype)
        assert is_sealed or array.tobytes() == whole[1][name].tobytes()


# Models -------------------------------------------------------------------------------------------

KINDS = ("plain", "vote of three", "best", "int8")


@cache
def model_files(kind: str) -> dict[str, bytes]:
    def make(path: Path) -> None:
        if kind == "int8":
            model = FieldwiseModel.load(folder_of(model_files("plain")))
            model.rows = pack(model.rows, model.layout.n_columns, "int8")  # type: ignore[assignment]
        else:
            model = fitted(kind)
        model.save(path)

    make.__name__ = kind.replace(" ", "-")
    return content(make)


@cache
def whole_model(kind: str) -> Any:
    return answers(FieldwiseModel.load(folder_of(model_files(kind))))


@cache
def some_rows() -> pl.DataFrame:
    return clicks(5, 12).drop("click", "level", "amount")


def answers(model: FieldwiseModel) -> Any:
    """What is asked of a model that was loaded."""
    frame = some_rows()
    one = rows_of(model, 1)[0] if set(model.schema.columns) <= set(frame.columns) else None
    out = [np.asarray(model.decision_function(frame)), model.predict(frame)]
    model.importance()
    if one is not None:
        out.append(np.asarray(model.decision_function(one)))
    explained = model.explain(frame.head(2))
    return [*out, np.asarray(explained.shapley)]


def is_same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def altered_model(data: bytes) -> None:
    """A byte of any file: refused, or scores are as they were."""
    draw = Draw(data)
    kind = draw.pick(KINDS)
    files = dict(model_files(kind))
    name = draw.pick(sorted(files))
    files[name] = draw.altered(files[name])
    model = FieldwiseModel.load(folder_of(files))
    assert is_same(answers(model), whole_model(kind)), f"{name} altered, and scores are others"


def sealed_model(data: bytes) -> None:
    """Headers, vocabularies, tables and trees that are others, with checksums that fit."""
    draw = Draw(data)
    files = dict(model_files(draw.pick(KINDS)))
    body = header(files, "model.json")
    name = draw.pick(sorted(files))
    if name.endswith(".parquet"):
        files[name] = words(draw, files[name])
    elif name.endswith(".safetensors"):
        files[name] = tensors(draw, files[name])
    elif name == "boosted.json":
        files[name] = trees(draw, files[name])
    if name == "model.json" or draw.below(4) == 0:
        body = draw.edited(body)
    folder = folder_of(files)
    sums = body.get("checksums")
    if isinstance(sums, dict) and draw.below(16):
        body["checksums"] = {k: checksum(folder / k) if k in files else v for k, v in sums.items()}
    (folder / "model.json").write_bytes(resealed(body) or b"")
    answers(FieldwiseModel.load(folder))


def tensors(draw: Draw, given: bytes) -> bytes:
    """A safetensors file whose own header is another."""
    (length,) = struct.unpack("<Q", given[:8])
    said = given[8 : 8 + length]
    if draw.below(4):
        said = json.dumps(draw.edited(json.loads(said))).encode()
    else:
        said = draw.altered(said)
    size = len(said) if draw.below(4) else draw.pick((0, 2**63, 2**64 - 1, length + 8))
    return struct.pack("<Q", size) + said + given[8 + length :]


def trees(draw: Draw, given: bytes) -> bytes:
    """LightGBM's text with some of its numbers replaced."""
    body = json.loads(given)
    if draw.coin():
        return json.dumps(draw.edited(body)).encode()
    lines = body["members"][0].split("\n")
    for _ in range(1 + draw.below(3)):
        at = draw.below(len(lines))
        name, sign, value = lines[at].partition("=")
        if not sign or not draw.below(8):
            lines[at] = draw.text().encode("utf-8", "ignore").decode()
            continue
        numbers = value.split(" ")
        new = draw.pick(("-1", "0", "1", "5", "-99", "100000", "2147483647", "", "nan", "x", "1e9"))
        numbers[draw.below(len(numbers))] = new
        lines[at] = f"{name}={' '.join(numbers)}"
    body["members"][0] = "\n".join(lines)
    return json.dumps(body).encode()


TARGETS = {
    "header": sealed_header,
    "schema": schema,
    "store": altered_store,
    "sealed-store": sealed_store,
    "checkpoint": checkpoint,
    "model": altered_model,
    "sealed-model": sealed_model,
}
SEEDS: dict[str, list[bytes]] = {
    "header": [
        *(sealed({"format": 1, "a": [1, {"b": None}]}), sealed({"format": 2}), b"[" * 3000),
        *(bytes([200, k, 7, 9, 40, 3, 99, 5, 7]) for k in range(8)),
    ],
}
