"""Every reader on real small files, and every bad input with its message."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fieldwise import FieldEncoder
from fieldwise.data import blocks
from fieldwise.data.encoding import encode
from fieldwise.data.frames import to_frame
from fieldwise.data.inferring import infer_schema
from fieldwise.data.profiling import profile
from fieldwise.data.readers import identity_of, open_source
from fieldwise.errors import DataError, FieldwiseError, SchemaError, SettingError


def read(data, **options) -> pl.DataFrame:
    return pl.concat([c.frame for c in open_source(data, **options).chunks()])


def rows(data, **options) -> list[tuple]:
    return read(data, **options).rows()


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


TRICKY = 'name,note\n"a,b","two\nlines"\n"say ""hi""",\n ä ,x\n'
TRICKY_ROWS = [("a,b", "two\nlines"), ('say "hi"', None), (" ä ", "x")]


def test_csv_with_quotes_newlines_and_gaps(tmp_path):
    assert rows(write(tmp_path / "t.csv", TRICKY)) == TRICKY_ROWS


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 21, 40])
def test_blocks_of_any_size_cut_between_rows(tmp_path, monkeypatch, size):
    path = write(tmp_path / "t.csv", TRICKY * 1 + '"q\n\nq","1"\nlast,row')
    assert b"".join(b for b, _ in blocks.byte_blocks(path, quote=True, size=size)) == (
        path.read_bytes() + b"\n"
    )
    monkeypatch.setattr(blocks.byte_blocks, "__kwdefaults__", {"size": size})
    assert rows(path) == [*TRICKY_ROWS, ("q\n\nq", "1"), ("last", "row")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b\r\n1,2\r\n3,\r\n", [("1", "2"), ("3", None)]),
        ("\ufeffa,b\n1,2\n", [("1", "2")]),
        ("a,b\n1,2", [("1", "2")]),
        ("a,b\n\n1,2\n\n\n3,4\n\n", [("1", "2"), ("3", "4")]),
        ('a,b\n"1",2\n\n3,4\n\n', [("1", "2"), ("3", "4")]),
        ("a,b\r\n\r\n1,2\r\n\r\n", [("1", "2")]),
        ("a;b\n1,5;2\n", [("1,5", "2")]),
        ("a|b\n1|2\n", [("1", "2")]),
        ("a\tb\nx y\tz\n", [("x y", "z")]),
        ("a\n1\n2\n", [("1",), ("2",)]),
        ("a,b\nNA,null\nnan,\\N\n", [(None, None), (None, None)]),
        (",b\n1,2\n", [("1", "2")]),
        ('a,b\n"","x"\n"y",""\n', [(None, "x"), ("y", None)]),
        ('"a\nb",c\n1,2\n', [("1", "2")]),
        ("column_2,,y\n1,2,3\n", [("1", "2", "3")]),
    ],
)
def test_text_as_people_write_it(tmp_path, content, expected):
    assert rows(write(tmp_path / "t.csv", content)) == expected


def test_words_for_missing_can_be_chosen(tmp_path):
    path = write(tmp_path / "t.csv", "country,x\nNA,?\n,1\n")
    assert rows(path, null_words=["?"]) == [("NA", None), (None, "1")]


def test_gzip_and_zstd(tmp_path):
    plain = write(tmp_path / "t.csv", TRICKY)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert rows(tmp_path / "t.csv.gz") == TRICKY_ROWS
    pl.DataFrame({"a": ["1", "2"], "b": ["x", "y"]}).lazy().sink_csv(
        tmp_path / "z.csv.zst", compression="zstd"
    )
    assert rows(tmp_path / "z.csv.zst") == [("1", "x"), ("2", "y")]


@pytest.mark.parametrize("first", ["x^", "x\x01", "xگ", "(b", "\ufeffz"])
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_rows_that_begin_like_a_compressed_file_are_rows(tmp_path, monkeypatch, first, size):
    monkeypatch.setattr(blocks.byte_blocks, "__kwdefaults__", {"size": size})
    path = write(tmp_path / "t.csv", f"a,b\n{first},1\nplain,2\n{first},3\n")
    assert rows(path) == [(first, "1"), ("plain", "2"), (first, "3")]


def test_a_compressed_table_is_the_table(tmp_path):
    text = 'a,b\n"x\r\ny",1\r\n"",2\n'
    write(tmp_path / "t.csv.gz", gzip.compress(text.encode()))
    assert rows(tmp_path / "t.csv.gz") == rows(write(tmp_path / "t.csv", text))


def test_an_archive_with_other_bytes_is_refused(tmp_path):
    whole = gzip.compress(b"a,b\n" + b"".join(b"%d,%d\n" % (k, k) for k in range(99)), 0)
    at = whole.index(b"42,42")
    for damaged in (whole[:at] + b"43" + whole[at + 2 :], whole[:at], whole + b"rest"):
        with pytest.raises(DataError, match="the compressed file is damaged"):
            rows(write(tmp_path / "t.csv.gz", damaged))


def test_a_name_with_brackets_is_that_file(tmp_path):
    frame = pl.DataFrame({"a": [1], "b": [2]})
    for name, value in (("[x]", 1), ("x", 7)):
        frame.with_columns(a=value).write_parquet(tmp_path / f"{name}.parquet")
        write(tmp_path / f"{name}.csv.gz", gzip.compress(f"a,b\n{value},2\n".encode()))
    assert read(tmp_path / "[x].parquet").equals(frame)
    assert rows(tmp_path / "[x].csv.gz") == [("1", "2")]


@pytest.mark.parametrize("name", ["t\0.csv", "\ud800.csv"])
def test_a_name_that_no_file_can_have(tmp_path, name):
    with pytest.raises(DataError, match="no such file|is not a path"):
        open_source(tmp_path / name)


def test_a_file_that_a_glob_finds_twice_is_read_once(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "t.csv", "a,b\n1,2\n")
    assert rows(f"{tmp_path}/**/**/*.csv") == [("1", "2")]


def test_folders_globs_and_lists_in_the_order_of_names(tmp_path):
    for name, value in (("b.csv", 2), ("a.csv", 1), ("sub/c.csv", 3)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, f"x,y\n{value},0\n")
    write(tmp_path / "README.md", "not data")
    assert [r[0] for r in rows(tmp_path)] == ["1", "2", "3"]
    assert [r[0] for r in rows(str(tmp_path / "*.csv"))] == ["1", "2"]
    assert [r[0] for r in rows([tmp_path / "b.csv", tmp_path / "a.csv"])] == ["2", "1"]


def test_parquet_and_arrow_by_their_first_bytes(tmp_path):
    frame = pl.DataFrame({"a": [1, None], "b": ["x", "y"]})
    frame.write_parquet(tmp_path / "t.data")
    frame.write_ipc(tmp_path / "u.data")
    assert read(tmp_path / "t.data").equals(frame)
    assert read(tmp_path / "u.data").equals(frame)


def test_in_memory_tables():
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", None]})
    for data in (
        frame,
        frame.lazy(),
        frame.to_arrow(),
        frame.to_arrow().to_reader(),
        pd.DataFrame({"a": [1, 2], "b": ["x", None]}),
        {"a": [1, 2], "b": ["x", None]},
    ):
        assert rows(data) == [(1, "x"), (2, None)]
    assert read(np.array([[1.5, 2.0]])).columns == ["x0", "x1"]
    structured = np.array([(1, "x")], dtype=[("a", "i4"), ("b", "U3")])
    assert rows(structured) == [(1, "x")]
    assert rows(pa.table({"d": pa.array(["u", "v", "u"]).dictionary_encode()})) == [
        ("u",),
        ("v",),
        ("u",),
    ]


def test_pandas_of_every_kind():
    frame = pd.DataFrame(
        {
            "i": pd.array([1, None], dtype="Int64"),
            "f": pd.array([1.5, None], dtype="Float64"),
            "b": pd.array([True, None], dtype="boolean"),
            "s": pd.array(["x", None], dtype="string"),
            "c": pd.Categorical([7, None]),
            "t": pd.to_datetime(["2020-01-01 05:00", None]),
            "z": pd.to_datetime(["2020-01-01 05:00", None]).tz_localize("Europe/Rome"),
            "o": pd.Series([b"raw", 3], dtype=object),
        }
    )
    out = to_frame(frame)
    assert out.row(1)[:5] == (None,) * 5
    assert out["c"].to_list() == ["7", None]
    assert [out[c][0].hour for c in "tz"] == [5, 5]
    assert out["o"].to_list() == ["b'raw'", "3"]


def test_libffm(tmp_path):
    path = write(tmp_path / "t.ffm", "1 0:3:1 1:7:1 2:9:0.5\n0 0:4:1 2:9:-2\n\n1 1:8:1 0:3:1\n")
    assert read(path).to_dict(as_series=False) == {
        "label": ["1", "0", "1"],
        "f0": ["3", "4", "3"],
        "f1": ["7", None, "8"],
        "f2": ["0.5", "-2.0", None],
    }


def test_libsvm_one_hot_rows_are_positions(tmp_path):
    path = write(tmp_path / "t.libfm", "1 3:1 700:1\n-1 4:1 701:1\n")
    assert read(path).to_dict(as_series=False) == {
        "label": ["1", "-1"],
        "f0": ["3", "4"],
        "f1": ["700", "701"],
    }


def test_libsvm_with_values_is_a_column_an_index(tmp_path):
    path = write(tmp_path / "t.svm", "1 3:0.5\n0 5:1 3:2\n")
    assert read(path).to_dict(as_series=False) == {
        "label": ["1", "0"],
        "f3": ["0.5", "2.0"],
        "f5": ["0.0", "1.0"],
    }


CSV = "a,b,y\nu,1,0\nv,2,1\n"
BAD = [
    ("empty", "t.csv", "", {}, "t.csv is empty"),
    ("blank", "t.csv", "\n\n", {}, "t.csv is empty"),
    ("header only", "t.csv", "a,b,y\n", {}, "no rows, only a header"),
    ("short row", "t.csv", CSV + "w,3\n", {}, "row 3: 2 values where there are 3 columns"),
    ("long row", "t.csv", CSV + "w,3,1,9\n", {}, "row 3: 4 values"),
    ("short quoted row", "t.csv", CSV + '"w,1",3\n', {}, "row 3: 2 values"),
    ("open quote", "t.csv", CSV + '"w,3,1\n', {}, "row 3: a quote where"),
    ("zero bytes", "t.csv", b"a,b,y\n\0\1,2,0\n", {}, "binary"),
    ("picture", "t.csv", b"\x89PNG\r\n\x1a\n" + b"\1" * 99, {}, "picture"),
    ("not UTF-8", "t.csv", b"a,b,y\nu,1,0\n\xff,2,1\n", {}, "row 2: byte 0xff is not UTF-8"),
    ("wrong separator", "t.csv", CSV, {"format": "tsv"}, r"only one column.*seems to use ','"),
    ("no target", "t.csv", CSV, {"target": "z"}, "'z' is not in the table"),
    ("near target", "t.csv", CSV.replace("y", "label"), {"target": "lable"}, "mean 'label'"),
    ("constant target", "t.csv", "a,y\nu,1\nv,1\n", {}, "'y' has the same value"),
    ("target with gaps", "t.csv", "a,y\nu,1\nv,\nw,0\n", {}, "'y' is missing in 1 of 3"),
    ("twice", "t.csv", "a,a,y\n1,2,0\n", {}, "'a' appears twice"),
    ("all null", "t.csv", "a,b,y\n1,,0\n2,,1\n", {}, r"'b' has no value.*drop"),
    ("mixed", "t.csv", CSV, {"kinds": {"a": "numeric"}}, "'a'.*not all numbers"),
    ("cut Parquet", "t.parquet", b"PAR1garbage", {}, "t.parquet cannot be read"),
    ("no Parquet", "t.parquet", CSV, {"format": "parquet"}, "t.parquet cannot be read"),
    (
        "cut gzip",
        "t.csv.gz",
        gzip.compress(CSV.encode() * 999)[:-40],
        {},
        "compressed file is damaged",
    ),
    ("header not UTF-8", "t.csv", b"a,\xff\n1,0\n", {}, "the header: byte 0xff is not UTF-8"),
    ("open header", "t.csv", 'a,"b\n1,0\n', {}, "the header: a quote where no quoted cell"),
    ("libffm not UTF-8", "t.ffm", b"1 0:\xff:1\n", {"target": None}, "row 1: byte 0xff is not"),
    ("bad libffm", "t.ffm", "1 0:3\n", {"target": None}, "row 1: '0:3' is not field:index:value"),
    ("not Criteo", "t.txt", CSV, {"format": "criteo", "target": None}, "40 columns"),
    ("not Avazu", "t.csv", CSV, {"format": "avazu", "target": None}, "'hour' is missing"),
    (
        "stray quote",
        "t.csv",
        'a,b,y\n5" pipe,1,0\nv,2,1\n',
        {},
        r"row 1: a quote where.*quote=False",
    ),
    (
        "quotes that swallow rows",
        "t.csv",
        'a,b,y\na"b"c,x y,"\nx y,b,5\n""x,a,a\na"b"c,a"b"c,"\n',
        {},
        "row 1: a quote where",
    ),
    ("CR alone", "t.csv", "a,b,y\ru,1,0\r", {}, "CR alone"),
    (
        "long ragged cell",
        "t.csv",
        CSV + "w" * 200_000 + "\n",
        {},
        r"after row 0 cannot be parsed|row 3",
    ),
    ("two-letter separator", "t.csv", CSV, {"separator": "::"}, "must be one ASCII character"),
    ("no label", "t.ffm", "0:1:1 1:2:1\n", {"target": None}, "row 1: the line has no label"),
    ("unknown setting", "t.csv", CSV, {"colour": 1}, "'colour' is not a setting"),
    ("weight is target", "t.csv", CSV, {"weight": "y"}, "cannot be the same"),
    ("no target", "t.csv", CSV, {"target": None}, "the target is missing"),
    ("bad format", "t.csv", CSV, {"format": "xls"}, "format='xls' is not one of"),
    ("bad weight", "t.csv", "a,w,y\nu,1,0\nv,-2,1\n", {"weight": "w"}, "row 2: weight 'w' is '-2'"),
    ("bad kind", "t.csv", CSV, {"kinds": {"a": "colour"}}, "kind 'colour' is not one of"),
]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_input(tmp_path, name, content, options, message):
    (tmp_path / "in").mkdir()
    path = write(tmp_path / "in" / name, content)
    with pytest.raises(FieldwiseError, match=message):
        encode(path, tmp_path / "out", **{"target": "y", **options})
    assert not (tmp_path / "out").exists()


def test_mixed_types_after_the_kind_is_fixed(tmp_path):
    """A column that is numeric by its schema and then holds a word."""
    good = write(tmp_path / "good.csv", "a,y\n" + "".join(f"{i}.5,{i % 2}\n" for i in range(20)))
    bad = write(tmp_path / "bad.csv", "a,y\n1.5,0\noops,1\n")
    store = encode(good, tmp_path / "s", target="y")
    with pytest.raises(DataError, match=r"bad.csv, row 2: column 'a' is numeric but holds 'oops'"):
        encode(bad, tmp_path / "s", append=True)
    with pytest.raises(DataError, match=r"bad.csv, row 2: column 'a'"):
        encode(bad, tmp_path / "t", schema=store.schema)
    assert not (tmp_path / "t").exists()


def test_target_gap_with_a_known_schema_names_the_row(tmp_path):
    store = encode(write(tmp_path / "a.csv", CSV), tmp_path / "s", target="y")
    with pytest.raises(DataError, match=r"b.csv, row 2: target 'y' is missing"):
        encode(
            write(tmp_path / "b.csv", "a,b,y\nu,1,0\nv,1,\n"), tmp_path / "t", schema=store.schema
        )


def test_places_without_data(tmp_path):
    (tmp_path / "empty").mkdir()
    for nowhere in (
        tmp_path / "nowhere.csv",
        ["nowhere.csv"],
        tmp_path / ("x" * 300),
        f"{tmp_path}/*",
    ):
        with pytest.raises(DataError, match="no such file|cannot be read"):
            open_source(nowhere)
    with pytest.raises(DataError, match="holds no table"):
        open_source(tmp_path / "empty")
    write(tmp_path / "a.csv", CSV)
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match="several formats together"):
        open_source(tmp_path)
    write(tmp_path / "c.csv", "a,b,z\n1,2,3\n")
    with pytest.raises(SchemaError, match=r"c.csv: its columns differ"):
        rows(str(tmp_path / "*.csv"))
    with pytest.raises(SettingError, match="format"):
        open_source(tmp_path / "a.csv", format="word")
    for thing in (None, 3, b"bytes"):
        with pytest.raises(DataError, match="is not a table"):
            open_source(thing)
    with pytest.raises(DataError, match="no rows"):
        open_source(pl.DataFrame({"a": []}))
    with pytest.raises(SchemaError, match="'a' appears twice"):
        open_source(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_a_place_that_cannot_be_written(tmp_path):
    write(tmp_path / "file", "x")
    with pytest.raises(FieldwiseError, match="cannot write"):
        encode(write(tmp_path / "t.csv", CSV), tmp_path / "file" / "s", target="y")


def test_a_header_longer_than_the_first_look(tmp_path):
    names = [f"a_rather_long_name_of_a_column_{i:06d}" for i in range(2500)]
    path = write(tmp_path / "t.csv", ",".join(names) + "\n" + ",".join("1" * 2500) + "\n")
    assert read(path).columns == names


def test_quotes_may_be_characters(tmp_path):
    path = write(tmp_path / "t.csv", 'size,y\n5" pipe,0\n"6",1\n')
    assert rows(path, quote=False) == [('5" pipe', "0"), ('"6"', "1")]
    assert rows(write(tmp_path / "u.csv", "a\tb,c\n1\t2,3\n"), separator="\\t") == [("1", "2,3")]


def test_quoted_numbers_are_numbers(tmp_path):
    quoted = 'x,y\n"0.5","1"\n"","0"\n"1.5","1"\n'
    plain = quoted.replace('"', "")
    schemas = [
        encode(write(tmp_path / f"{i}.csv", t), tmp_path / f"s{i}", target="y").schema
        for i, t in enumerate((quoted, plain))
    ]
    assert schemas[0] == schemas[1]
    assert schemas[0]["x"].kind == "numeric"


def test_values_count_once_however_they_are_written(tmp_path):
    path = write(tmp_path / "t.csv", "x,y\na,0\nb,1\na,1.0\n")
    assert encode(path, tmp_path / "s", target="y").schema.target.classes == ("0", "1")


def test_libffm_knows_its_target_and_its_categories(tmp_path):
    lines = "".join(f"{i % 2} 0:{i}:1 1:{i % 2}:1 2:9:{i}.5\n" for i in range(40))
    store = encode(write(tmp_path / "t.ffm", lines), tmp_path / "s")
    assert [f.kind for f in store.schema.fields] == ["category", "category", "numeric"]
    assert store.schema.target.column == "label"
    # What was a number stays one, though in this file every value is 1; a field may be absent.
    more = write(tmp_path / "more.ffm", "1\t0:3:1  2:9:1\n0 0:4:1 2:9:1\n")
    store = encode(more, tmp_path / "s", append=True)
    assert store.read(40, 42)["codes"][:, 2].tolist() == [1, 1]
    assert store.read(40, 42)["codes"][:, 1].tolist() == [3, 3]  # missing, now seen twice


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 0:3:0.25 2:9:1", "row 1: field 0 with value 0.25 is a category"),
        ("1 7:3:1", "row 1: field 7 with value 1 is none of the fields"),
    ],
)
def test_libffm_that_does_not_fit_the_store(tmp_path, line, message):
    lines = "".join(f"{i % 2} 0:{i}:1 2:9:{i}.5\n" for i in range(9))
    encode(write(tmp_path / "t.ffm", lines), tmp_path / "s")
    with pytest.raises(DataError, match=message):
        encode(write(tmp_path / "u.ffm", line + "\n"), tmp_path / "s", append=True)


def test_hidden_folders_are_no_data(tmp_path):
    write(tmp_path / "a.csv", "x\n1\n")
    for hidden in (".ipynb_checkpoints", "_temporary"):
        (tmp_path / hidden).mkdir()
        write(tmp_path / hidden / "b.csv", "x\n2\n")
    assert rows(tmp_path) == [("1",)]


def test_kinds_of_the_target(tmp_path):
    path = write(tmp_path / "t.csv", "a,y\n" + "u,0\nv,1\nw,2\n" * 3)
    store = encode(path, tmp_path / "s", target="y", kinds={"y": "category"})
    assert store.schema.target.classes == ("0", "1", "2")
    assert encode(path, tmp_path / "n", target="y").schema.target.kind == "numeric"
    with pytest.raises(SchemaError, match="kind 'log2' is not category or numeric"):
        encode(path, tmp_path / "l", target="y", kinds={"y": "log2"})
    with pytest.raises(SettingError, match="cannot be dropped"):
        encode(path, tmp_path / "l", target="y", drop=["y"])
    with pytest.raises(SettingError, match="must be a list"):
        encode(path, tmp_path / "l", target="y", drop="a")


def test_a_table_is_told_from_another(tmp_path):
    """Whatever it was named by: files, folders, patterns and lists notice a change in any file."""
    one, two = (write(tmp_path / name, "a,y\nu,0\nv,1\n") for name in ("1.csv", "2.csv"))
    ways = [two, str(two), tmp_path, f"{tmp_path}/*.csv", [one, two]]
    before = [identity_of(way, times=False) for way in ways]
    assert before == [identity_of(way, times=False) for way in ways]
    write(two, "a,y\nu,0\nw,1\n")
    after = [identity_of(way, times=False) for way in ways]
    assert all(a != b for a, b in zip(before, after, strict=True))
    copy = tmp_path / "copies" / "2.csv"
    copy.parent.mkdir()
    write(copy, two.read_text())
    os.utime(copy, (1, 1))
    assert identity_of(copy, times=False) == identity_of(two, times=False)
    assert identity_of(copy) != identity_of(two)

    frame = pl.DataFrame({"a": ["u", "v"], "b": [1, 2]})
    same = [frame, frame.to_pandas(), frame.to_arrow(), frame.to_dict(as_series=False)]
    assert all(identity_of(table) == identity_of(frame) for table in same)
    assert identity_of(frame) != identity_of(frame.reverse())
    assert identity_of(frame.lazy()) != identity_of(frame.lazy().filter(pl.col("b") > 1))


def test_times_keep_their_fractions_as_categories():
    frame = pl.DataFrame({"t": pl.Series([1, 2], dtype=pl.Datetime("us"))})
    source = open_source(frame)
    schema = infer_schema(profile(source), kinds={"t": "category"}, min_count=1)
    assert encode_frame(frame, schema) == [[1], [2]]


def encode_frame(frame, schema):
    return FieldEncoder(schema=schema).fit_transform(frame).tolist()
