"""Every target of `fuzz` on usual inputs, on inputs that once failed, and on some drawn near them.
The long run is `make fuzz`."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

import polars as pl
import pyarrow.parquet
import pytest
from fuzz import folders
from fuzz.draws import Draw
from fuzz.targets import ALLOTTED, CORPUS, seeds, target
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fieldwise import FieldwiseModel, Store, checkpoint
from fieldwise.errors import FieldwiseError
from fieldwise.files import sealed
from fieldwise.serve.footer import LARGEST, Part, parts_of
from serving import clicks

ROOT = Path(__file__).parents[1]
FEW = {
    "table": 3,
    "arguments": 3,
    "model": 6,
    "sealed-model": 6,
    "rank": 6,
    "batch": 6,
}


def asked(name: str, data: bytes) -> None:
    """A refusal is an answer; anything else that is raised fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(FieldwiseError):
            target(name)(data)


@pytest.mark.parametrize("name", sorted(ALLOTTED))
def test_what_once_failed_and_what_is_near_it(name):
    given_first = seeds(name)
    for data in given_first:
        asked(name, data)

    @settings(
        max_examples=FEW.get(name, 20),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(given_first), st.binary(min_size=1, max_size=24))
    def near(seed, changes):
        asked(name, Draw(changes).altered(seed))

    if name != "binary":  # altered Parquet may end the process, in polars; see docs/trust.md
        near()


# Altered, and sealed again: checksums fit, and the content does not -------------------------------


def without(body, *names):
    for name in names:
        del body[name]


def line(body, start, value):
    """A line of the first tree that has it, with another value."""
    lines = body["members"][0].split("\n")
    at = next(k for k, text in enumerate(lines) if text.startswith(start))
    lines[at] = start + value
    body["members"][0] = "\n".join(lines)


HEADERS = {
    "format": lambda b: b.update(format=True),
    "sizes": lambda b: b["sizes"].__setitem__(0, b["sizes"][0] + 1),
    "slots": lambda b: b["slots"].__setitem__(0, 2),
    "negative rank": lambda b: b["ranks"].__setitem__(0, -1),
    "huge rank": lambda b: b["ranks"].__setitem__(0, 2**62),
    "offsets": lambda b: b["offsets"].append(0.0),
    "no number": lambda b: b["offsets"].__setitem__(0, float("nan")),
    "two heads": lambda b: b["objective"]["heads"].append(b["objective"]["heads"][0]),
    "members": lambda b: b["objective"].update(n_members=2),
    "voices": lambda b: b["objective"].update(voices=[1.0]),
    "settings": lambda b: b.update(settings=[]),
    "rate": lambda b: b["settings"].update(sampling_rate=0),
    "history": lambda b: b.update(history=[1]),
    "a file above": lambda b: b["checksums"].update({"../model.json": 0}),
    "no checksum": lambda b: without(b["checksums"], "table.safetensors"),
    "no moments": lambda b: without(b["checksums"], "moments.safetensors"),
    "field": lambda b: b["schema"]["fields"][0].update(name=5),
    "fields": lambda b: b["schema"]["fields"].append(b["schema"]["fields"][0]),
    "part": lambda b: b["schema"]["fields"][0].update(unheard_of=1),
    "classes": lambda b: b["schema"]["targets"][0].update(classes=["0", "1", "2"]),
    "no target": lambda b: b["schema"].update(targets=[]),
}
TREES = {
    "child": lambda b: line(b, "left_child=", "99999 " * 30),
    "feature": lambda b: line(b, "split_feature=", "-7 " * 30),
    "leaves": lambda b: line(b, "num_leaves=", "1000000"),
    "size": lambda b: line(b, "tree_sizes=", "1 -5"),
    "features": lambda b: line(b, "max_feature_idx=", "3000000"),
    "categories": lambda b: line(b, "num_cat=", "1"),
    "outputs": lambda b: b.update(n_outputs=3),
    "shift": lambda b: b.update(shift=float("inf")),
    "members": lambda b: b.update(members=[5]),
}


def refuses_model(files):
    with pytest.raises(FieldwiseError) as told:
        folders.answers(FieldwiseModel.load(folders.folder_of(files)))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("edit", HEADERS.values(), ids=HEADERS)
def test_a_models_header_is_not_believed(edit):
    files = dict(folders.model_files("plain"))
    body = folders.header(files, "model.json")
    edit(body)
    refuses_model({**files, "model.json": sealed(body)})


@pytest.mark.parametrize("edit", TREES.values(), ids=TREES)
def test_trees_are_not_believed(edit):
    files = dict(folders.model_files("best"))
    trees = json.loads(files["boosted.json"])
    edit(trees)
    refuses_model(with_file(files, "boosted.json", json.dumps(trees).encode()))


def with_file(files, name, content):
    """The files with another one, whose checksum the header has."""
    body = folders.header(files, "model.json")
    body["checksums"][name] = zlib.crc32(content)
    return {**files, name: content, "model.json": sealed(body)}


@pytest.mark.parametrize("code", [-2, 0, 1, 1_000_000, None])
def test_codes_of_a_vocabulary_are_not_believed(code):
    files = dict(folders.model_files("plain"))
    frame = pl.read_parquet(io.BytesIO(files["vocabulary.parquet"]))
    last = frame.filter(pl.col("field") == "site")["code"].max()
    is_last = (pl.col("field") == "site") & (pl.col("code") == last)
    out = io.BytesIO()
    other = pl.when(is_last).then(pl.lit(code, pl.Int32)).otherwise("code").alias("code")
    frame.with_columns(other).write_parquet(out)
    refuses_model(with_file(files, "vocabulary.parquet", out.getvalue()))


@pytest.mark.parametrize("length", [0, 7, 2**40, 2**63, 2**64 - 1])
def test_the_length_of_a_tensors_header_is_not_believed(length):
    files = dict(folders.model_files("plain"))
    content = struct.pack("<Q", length) + files["table.safetensors"][8:]
    refuses_model(with_file(files, "table.safetensors", content))


def test_places_of_tensors_are_not_believed():
    files = dict(folders.model_files("plain"))
    table = files["table.safetensors"]
    (length,) = struct.unpack("<Q", table[:8])
    said = json.loads(table[8 : 8 + length])
    size = said["table"]["data_offsets"][1]
    for places in ([0, size - 4], [4, size + 4], [-8, size - 8], [1, size + 1], ["0", size], [0]):
        said["table"]["data_offsets"] = places
        header = json.dumps(said).encode().ljust(length)
        content = struct.pack("<Q", len(header)) + header + table[8 + length :]
        refuses_model(with_file(files, "table.safetensors", content))


STORES = {
    "blocks of none": lambda b: b.update(block_rows=0),
    "rows": lambda b: b.update(n_rows=-1),
    "columns": lambda b: b["arrays"]["codes"].update(columns=1),
    "a file above": lambda b: b["vocabulary"].update(file="../x"),
    "another array": lambda b: b["arrays"].update(more=b["arrays"]["codes"]),
    "sizes": lambda b: b["counts"]["sizes"].pop(),
    "codes that no category has": lambda b: b["counts"]["sizes"].__setitem__(0, 1),
    "no sums": lambda b: b["arrays"]["codes"].update(checksums=[]),
    "no counts": lambda b: without(b, "counts"),
}


@pytest.mark.parametrize("edit", STORES.values(), ids=STORES)
def test_a_stores_header_is_not_believed(edit):
    files = dict(folders.content(folders._store))
    body = folders.header(files, "header.json")
    edit(body)
    files["header.json"] = sealed(body)
    with pytest.raises(FieldwiseError):
        Store(folders.folder_of(files)).verify()


@pytest.mark.parametrize(
    "said", [{"dtype": "O"}, {"dtype": "V4"}, {"file": "../x"}, {"shape": [-20, -3]}, {"shape": 6}]
)
def test_arrays_of_a_checkpoint_are_not_believed(said):
    files = dict(folders.content(folders._checkpoint))
    body = folders.header(files, "checkpoint.json")
    body["arrays"]["table"].update(said)
    files["checkpoint.json"] = sealed(body)
    with pytest.raises(FieldwiseError):
        checkpoint.load(folders.folder_of(files))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd", "row_group_size": 10},
        {"use_dictionary": False, "column_encoding": {"site": "DELTA_BYTE_ARRAY"}},
        {"write_page_index": True, "store_schema": False, "version": "1.0"},
    ],
)
def test_a_parquet_footer_says_what_pyarrow_reads_of_it(options):
    out = io.BytesIO()
    pyarrow.parquet.write_table(clicks(1, 50).to_arrow(), out, **options)
    meant = pyarrow.parquet.ParquetFile(out).metadata
    found = parts_of(out.getvalue())
    assert len(found) == meant.num_row_groups
    for g, group in enumerate(found):
        assert len(group) == meant.num_columns
        for k, part in enumerate(group):
            column = meant.row_group(g).column(k)
            sizes = column.num_values, column.total_uncompressed_size
            assert (part.num_values, part.total_uncompressed_size) == sizes
            assert part.deltas == {e for e in column.encodings if e.startswith("DELTA_")}


# A row group with a column whose num_values is 3 and whose total_uncompressed_size is 10.
BEFORE = bytes.fromhex("49 1C  19 1C  3C  29 15 00  36 06")
WHOLE = BEFORE + bytes.fromhex("16 14  00 00 00 00")


def footed(said):
    return b"PAR1" + said + len(said).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("05 0A 02", "field 5 is there twice"),  # of another kind, which pyarrow passes over
        ("06 8A 80 08 02", "field 65541"),  # which C++ wraps to 5
        ("06 00 02", "field 0"),
        ("06 01 02", "field -1"),
    ],
)
def test_a_footer_that_pyarrow_would_read_otherwise_is_refused(more, words):
    assert parts_of(footed(WHOLE)) == [[Part(3, 10, frozenset())]]
    altered = BEFORE + bytes.fromhex(more) + WHOLE[len(BEFORE) :]
    with pytest.raises(ValueError, match=words):
        parts_of(footed(altered))


@pytest.mark.parametrize(
    ("encodings", "words"),
    [
        ("29 13 0A", "of kind 3"),  # a byte to us, DELTA_BINARY_PACKED to pyarrow
        ("29 15 8A 80 80 80 10", "more than 32 bits"),  # of which pyarrow takes the last
    ],
)
def test_a_list_of_a_footer_says_the_same_to_pyarrow(encodings, words):
    said = WHOLE.replace(bytes.fromhex("29 15 00"), bytes.fromhex(encodings))
    with pytest.raises(ValueError, match=words):
        parts_of(footed(said))


def test_what_nobody_asks_of_a_footer_is_not_kept():
    n = 500_000
    size = bytes([n & 127 | 128, n >> 7 & 127 | 128, n >> 14])
    structs = bytes.fromhex("09 28 FC") + size + bytes(n)  # a list of empty ones, field 20
    body = footed(structs + bytes.fromhex("09 08") + WHOLE[1:])
    tracemalloc.start()
    try:
        assert parts_of(body) == [[Part(3, 10, frozenset())]]
        assert tracemalloc.get_traced_memory()[1] < 2 * n
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="is the most"):
        parts_of(footed(bytes(LARGEST + 1)))


def test_every_folder_of_inputs_is_that_of_a_target():
    assert {path.name for path in CORPUS.iterdir()} <= set(ALLOTTED)


def test_a_target_that_fails_is_found(tmp_path, monkeypatch):
    """The search keeps what fails and goes on."""
    pytest.importorskip("atheris", reason="atheris, which searches, has no wheel here")
    script = (
        "import sys; from pathlib import Path; import fuzz.__main__ as run, fuzz.targets\n"
        f"run.WORK = Path({str(tmp_path)!r}); (run.WORK / 'fatal').mkdir()\n"
        "def broken(data):\n    assert data[:1] != b'x', 'as it should'\n"
        "fuzz.targets._room('header').TARGETS['header'] = broken\n"
        "fuzz.targets._room('header').SEEDS['header'] = [b'', b'w', b'xy']\n"
        "run.search('header', 300, 60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    found = sorted((tmp_path / "findings" / "header").glob("*"))
    assert [p.suffix for p in found] == ["", ".txt"], done.stderr[-2000:]
    assert found[0].read_bytes()[:1] == b"x"
    assert "AssertionError" in found[1].read_text()
    inputs = int.from_bytes((tmp_path / "header.count").read_bytes()[:8], "little")
    assert inputs >= 300
