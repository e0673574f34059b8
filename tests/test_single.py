"""One row at a time: codes as a frame's for every kind of field, what was unseen, what is kept."""

from __future__ import annotations

import datetime as dt
import threading

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fieldwise import FieldEncoder, FieldwiseModel
from fieldwise.data import vocabulary as vocabularies
from fieldwise.data.chunks import Chunk
from fieldwise.data.numbers import bin_of
from fieldwise.data.schema import PARTS, Field, Schema
from fieldwise.data.single import RowCoder
from fieldwise.data.vocabulary import FieldVocabulary, Vocabulary
from fieldwise.errors import FieldwiseError
from serving import clicks, fitted

DAYS = [dt.datetime(2020 + d % 3, 1 + d % 12, 1 + d % 28, d % 24, d % 60) for d in range(400)]


@pytest.fixture(scope="module")
def times() -> Vocabulary:
    """Every part of a time, as a field each."""
    frame = pl.DataFrame({"when": DAYS})
    numbers = ("string", *["integer"] * 6)
    fields = [
        Field(name=part, column="when", part=part, dtype=dtype, min_count=1)
        for part, dtype in zip(PARTS, numbers, strict=True)
    ]
    return FieldEncoder(schema=Schema(fields=tuple(fields))).fit(frame).vocabulary_


written = st.one_of(
    st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)).map(lambda t: t.isoformat()),
    st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2022, 12, 31)).map(str),
    st.dates(dt.date(2020, 1, 1), dt.date(2022, 12, 31)).map(str),
    st.sampled_from(DAYS).map(lambda t: t.strftime("%Y-%m-%dT%H:%M")),
    st.from_regex(r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{1,2}:?[0-9]{0,3}.?)?\Z"),
)


@given(written)
@example("2021-02-31T10:00:00")
@example("2021-02-03T9:05")
@example("2021-02-03 99:77:00")
@example("2021-02-034")
@example("0000-00-00T00:00")
@example("٢٠٢١-02-03T10:00")
def test_a_time_of_a_row_is_coded_as_in_a_frame(times, text):
    for j, words in enumerate(times.fields):
        alone = Vocabulary(Schema(fields=(words.field,)), [words])
        try:
            expected = alone.encode(Chunk(pl.DataFrame({"when": [text]})))[0][0, 0]
        except FieldwiseError:
            with pytest.raises(FieldwiseError):
                RowCoder(alone)({"when": text})
            continue
        assert RowCoder(alone)({"when": text})[0][0, 0] == expected, times.schema.names[j]


@given(st.one_of(st.floats(allow_nan=False), st.integers(-(2**62), 2**62)))
@example(1e149)
@example(1e151)
@example(float("inf"))
def test_a_number_kept_as_it_is_has_the_value_it_has_in_a_frame(number):
    field = Field(name="x", kind="numeric", binning="linear", dtype="float", center=3.7, scale=0.3)
    entries = pl.DataFrame(
        {"category": ["(value)"], "code": [0], "count": [9]}, schema=vocabularies.ENTRIES
    )
    words = Vocabulary(Schema(fields=(field,)), [FieldVocabulary(field, entries)])
    try:
        codes, values = words.encode(Chunk(pl.DataFrame({"x": [number]})))
    except FieldwiseError:
        with pytest.raises(FieldwiseError):
            RowCoder(words)({"x": number})
        return
    found = RowCoder(words)({"x": number})
    assert np.array_equal(found[0], codes)
    assert np.array_equal(found[1], values)


@pytest.fixture(scope="module")
def model() -> FieldwiseModel:
    return fitted("plain")


def test_a_row_without_one_of_its_fields(model):
    row = clicks(4, 1).drop("click", "level", "amount").row(0, named=True)
    coder = RowCoder(model.vocabulary)
    whole, values = coder(row)
    starts = model.layout.slot_starts
    for j, name in enumerate(model.schema.names):
        left = {k: v for k, v in row.items() if k != name} if name in ("site", "tags") else row
        codes, other = coder(left, without=name)
        own = slice(int(starts[j]), int(starts[j + 1]))
        assert not codes[0, own].any()
        rest = np.ones(whole.shape[1], bool)
        rest[own] = False
        assert np.array_equal(codes[0, rest], whole[0, rest])
        assert other.shape == values.shape


def test_what_was_never_seen_is_counted_as_in_a_frame(model):
    frame = clicks(4, 200).drop("click", "level", "amount")
    odd = np.arange(200) % 3 == 0
    frame = frame.with_columns(
        site=pl.Series(np.where(odd, "new", frame["site"].fill_null("a").to_numpy())),
        hour=pl.Series(np.where(odd, 99, frame["hour"].to_numpy())),
        tags=pl.Series([["t1", "new"] if o else ["t1"] for o in odd]),
        when=pl.Series(np.where(odd, np.datetime64("1999-01-01T05:00", "us"), frame["when"])),
    )
    counted = np.zeros(model.layout.n_fields, np.int64)
    model.vocabulary.encode(Chunk(frame), counted)
    coder = RowCoder(model.vocabulary)
    texts = frame.with_columns(pl.col("when").dt.to_string("%Y-%m-%dT%H:%M:%S"))
    for row in texts.iter_rows(named=True):
        coder(row)
    assert coder.n_unseen == counted.tolist()
    assert sum(coder.n_unseen) == 4 * int(odd.sum())


def test_values_never_seen_do_not_pile_up(monkeypatch):
    """However long they are, and in whatever form they come."""
    known = pl.DataFrame({"n": [1, 2, 3] * 5, "s": ["a", "b", "c"] * 5})
    words = FieldEncoder(kinds={"n": "category"}, min_count=1).fit(known).vocabulary_
    monkeypatch.setattr(vocabularies, "MOST_BYTES", 50_000)
    expected, _ = words.encode(Chunk(known))
    coder = RowCoder(words)
    for k in range(300):
        long = f"{k:05}" + "x" * 995
        codes, _ = words.encode(Chunk(pl.DataFrame({"n": [long], "s": [long]})))
        assert codes.tolist() == [[-1, -1]]
        assert coder({"n": long, "s": long})[0].tolist() == [[-1, -1]]
        assert np.array_equal(words.encode(Chunk(known))[0], expected)
    for held in words._coders:
        assert held._keys.size < 4 + 2 * 51
    for one in coder._coders:
        assert not one._others
        assert one._alone._coders is None or one._alone._coders[0]._keys.size < 4 + 2 * 51


def test_threads_that_meet_new_values_do_not_disturb_each_other(monkeypatch):
    """One begins its dictionary anew while another is between its steps."""
    monkeypatch.setattr(vocabularies, "MOST_BYTES", 2000)
    known = pl.DataFrame({"s": [f"k{k}" for k in range(50)] * 2})
    words = FieldEncoder(min_count=1).fit(known).vocabulary_
    expected = words.encode(Chunk(known))[0]
    problems: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for k in range(150):
                fresh = pl.DataFrame({"s": [f"{name} {k} {i}" for i in range(20)]})
                assert (words.encode(Chunk(fresh))[0] == -1).all()
                assert np.array_equal(words.encode(Chunk(known))[0], expected)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_fields_of_evidence_are_what_their_vocabularies_say():
    model = fitted("glass")
    words = model.vocabulary
    frame = clicks(4, 100).select(model.schema.columns)
    base, plain = words.base.encode(Chunk(frame))
    found = words.evidence.of(base)
    codes, values = words.extended(base, plain, found)
    flat = found.evidence.reshape(len(frame), -1)
    own = [f for f in words.fields if f.field.cross]
    assert {f.field.is_linear for f in own} == {True, False}
    at = plain.shape[1]
    for k, field in enumerate(own):
        number = flat[:, k % flat.shape[1]].astype(np.float64)
        code = codes[:, base.shape[1] + k]
        if field.field.is_linear:
            assert not code.any()
            assert np.array_equal(values[:, at], field.scaled(number))
            at += 1
        else:
            assert np.array_equal(code, 1 + bin_of(number, field.field.edges))
    assert at == values.shape[1]
