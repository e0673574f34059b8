"""A fieldwise model in one file. It needs NumPy, and not fieldwise.

    from FILE import contributions, predict_proba, score

    predict_proba({"carrier": "UA", "hour": 7})  # of a row: a number
    predict_proba([{...}, {...}])                # of rows: an array
    score(...)                                   # what the chance is made of: log-odds
    contributions({...})                         # the base, and what every field adds to it

    python FILE < rows.csv                       # a line a row

A row is a dict of raw values, one for every column of the model; None is missing, and a value that
training never saw is taken as the model was told to. What the model would refuse is a ValueError.
Of more than two classes there is a chance for each; a model of numbers has `predict`.
"""

from __future__ import annotations

import base64
import csv
import datetime
import json
import re
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np

__all__ = ["contributions", "predict", "predict_proba", "score"]

Row = Mapping[str, Any]


def score(rows: Row | Sequence[Row]) -> Any:
    """Scores: of a row a number, of rows (n,); of more than one output (K,) and (n, K)."""
    found = _model().scores(_listed(rows))
    found = found[:, 0] if found.shape[1] == 1 else found
    return found[0].tolist() if isinstance(rows, Mapping) else found


def predict(rows: Row | Sequence[Row]) -> Any:
    """What scores stand for: chances, numbers or rates; of several targets a dict of them."""
    model = _model()
    found = model.predictions(model.scores(_listed(rows)))
    if isinstance(rows, Mapping):
        found = {name: part[0].tolist() for name, part in found.items()}
    return found if len(found) > 1 else next(iter(found.values()))


def predict_proba(rows: Row | Sequence[Row]) -> Any:
    """The chance of the second of two classes, or of every class."""
    if not all(head["is_class"] for head in _model().about["heads"]):
        raise ValueError("the model predicts numbers, not classes; use predict")
    return predict(rows)


def contributions(row: Row) -> tuple[Any, dict[str, Any]]:
    """The base and what every field adds to it, which sum to the score: exact Shapley values.
    Of evidence each of the fields it is made of has an equal share."""
    return _model().contributions(row)


def _listed(rows: Row | Sequence[Row]) -> Sequence[Row]:
    return [rows] if isinstance(rows, Mapping) else rows


# How a value is read. A key is the text of a category: 7, 7.0 and "7" are all "7".

WHITE = "".join(map(chr, (*range(9, 14), 32, 133, 160, 5760, *range(8192, 8203), 8232, 8233)))
WHITE += "\u202f\u205f\u3000"
NO_NUMBER = ("nan", "NaN", "NAN", "")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
WHOLE = re.compile(r"([+-]?)0*([0-9]+?)(?:\.0*)?")
PLACES = {"year": (0, 4), "month": (5, 7), "day": (8, 10), "hour": (11, 13), "minute": (14, 16)}
MANY = (list, tuple, set, frozenset, np.ndarray)
LARGEST_LINEAR, LARGEST_VALUE = 1e150, float(np.finfo(np.float32).max)


def _text(value: Any) -> str | None:
    """A value as text; None where there is none."""
    if isinstance(value, np.generic):  # the text of a short float is shorter
        value = float(str(value)) if isinstance(value, np.floating) else value.item()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return None if value != value else _float_text(value)
    if isinstance(value, Decimal):
        return _number_text(float(value))
    if isinstance(value, (datetime.datetime, datetime.time)):
        return _clock(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return str(value // datetime.timedelta(microseconds=1))
    if isinstance(value, bytes):
        return value.decode()
    raise ValueError(f"{value!r} is no text, number, truth value or time")


def _clock(value: datetime.datetime | datetime.time) -> str:
    """A time as it is in its zone; one that has but an offset, at Greenwich."""
    if isinstance(value, datetime.datetime) and value.tzinfo and not hasattr(value.tzinfo, "key"):
        value -= value.utcoffset() or datetime.timedelta(0)
    small = value.microsecond
    precision = "microseconds" if small % 1000 else "milliseconds" if small else "seconds"
    return value.replace(tzinfo=None).isoformat(timespec=precision)


def _float_text(number: float) -> str:
    text = repr(number)
    if "e-" not in text:
        return text
    digits, power = text.split("e-")
    return format(Decimal(text), "f") if int(power) == 5 else f"{digits}e-{int(power)}"


def _number_text(number: float) -> str:
    """Whole numbers without a point."""
    whole = abs(number) < 2.0**63 and number == int(number)
    return str(int(number)) if whole else _float_text(number)


def _parsed(text: str) -> float | None:
    return float(text) if NUMBER.fullmatch(text) or INFINITE.fullmatch(text) else None


def _number(value: Any) -> float | None:
    """A value as a number; None where it is missing."""
    if isinstance(value, (datetime.date, datetime.time, bytes)):
        raise ValueError(f"{value!r} is no number")
    text = _text(value)
    text = None if text is None else text.strip(WHITE)
    if text is None or text in NO_NUMBER:
        return None
    if not isinstance(value, str) and isinstance(value, (int, float, np.integer, np.floating)):
        return float(value)
    number = {"true": 1.0, "false": 0.0}.get(text.lower(), _parsed(text))
    if number is None:
        raise ValueError(f"{value!r} is no number")
    return number


def _calendar(text: str, part: str) -> str | None:
    """A part of a date or time as it is written: 2013-01-31T17:05."""
    if part == "date":
        found = re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text)
        return found[0] if found else None
    if part == "weekday":
        if not re.fullmatch(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}", text[:10]):
            return None
        try:
            return str(datetime.date(*map(int, text[:10].split("-"))).isoweekday())
        except ValueError:
            return None
    start, stop = PLACES[part]
    piece = text[start:stop]
    return str(int(piece)) if re.fullmatch(r"[+-]?[0-9]+", piece) else None


def _key(field: Mapping[str, Any], text: str) -> str | None:
    """The category that a text stands for; None where it stands for none."""
    if field["part"] is not None:
        return _calendar(text, field["part"])
    if field["dtype"] == "string":
        return text
    text = text.strip(WHITE)
    if field["dtype"] == "boolean":
        text = text.lower()
        return {"1": "true", "1.0": "true", "0": "false", "0.0": "false"}.get(text, text)
    if text in NO_NUMBER:
        return None
    number = _parsed(text)
    if field["binning"] == "log2":  # v > 2 is floor(log(v)^2), else floor(v) - 2
        if number is None:
            return None
        v = np.float64(number)
        return _number_text(float(np.floor(np.log(v) ** 2) if v > 2 else np.floor(v) - 2))
    if whole := WHOLE.fullmatch(text):
        return "-" * (whole[1] == "-" and whole[2] != "0") + whole[2]
    return text if number is None else _number_text(number)


class _Field:
    """How the values of a field become rows of the table: codes, each times a value."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = about
        self.words = dict(zip(about["words"], about["codes"], strict=True))

    def __call__(self, value: Any) -> list[tuple[int, float]]:
        about = self.about
        if about["n_slots"]:
            return self._items(value)
        if about["binning"] in (None, "log2"):
            return [(self._counted(value), 1.0)]
        return [self.of_number(_number(value))]

    def of_number(self, number: float | None) -> tuple[int, float]:
        about = self.about
        if number is None:
            return self._settled(about["missing"], None), 1.0
        if about["binning"] != "linear":
            return 1 + bisect_right(about["edges"], number), 1.0
        if not abs(number) < LARGEST_LINEAR:
            raise ValueError(f"{number:g} is too large for a linear field")
        value = (number - about["center"]) / about["scale"]
        return 0, float(np.float32(min(max(value, -LARGEST_VALUE), LARGEST_VALUE)))

    def _counted(self, value: Any) -> int:
        text = _text(value)
        key = None if text is None else _key(self.about, text)
        if key is not None:
            return self._settled(self.words.get(key, self.about["unseen"]), value)
        if text is not None and text not in NO_NUMBER:
            raise ValueError(f"{value!r} is no {'time' if self.about['part'] else 'number'}")
        return self._settled(self.about["missing"], value)

    def _settled(self, code: int, value: Any) -> int:
        if code < -1:
            raise ValueError(f"{value!r} was never seen in training, and unseen='error'")
        return code

    def _items(self, value: Any) -> list[tuple[int, float]]:
        """The first so many of a list, or of a text between separators; a plain value is one."""
        separator, most = self.about["separator"], self.about["n_slots"]
        if isinstance(value, MANY):
            items = sorted(value) if isinstance(value, (set, frozenset)) else list(value)
            if not items or any(_text(item) is None for item in items):
                raise ValueError(f"{value!r} is empty, or has a None in it; None alone is missing")
        elif separator is None:
            items = [value]
        else:
            text = _text(value) or ""
            items = text.split(separator) if text.strip(WHITE) else [None]
        if separator is not None:
            items = [item.strip(WHITE) if isinstance(item, str) else item for item in items]
            if "" in items:
                raise ValueError(f"{value!r} has an empty value beside a {separator!r}")
        if len(items) > most and self.about["unseen"] < -1:
            raise ValueError(f"{value!r} has more values than the longest of training, {most}")
        share = 1 / np.float32(min(len(items), most)) if self.about["pooling"] == "mean" else 1.0
        return [(self._counted(item), float(share)) for item in items][:most]


class _Model:
    """The table T (d + m, R + K): a row for every category of every field, then one a field for
    what was never seen. Every column but the last K, which are biases, belongs to a field."""

    def __init__(self, content: bytes) -> None:
        size = int.from_bytes(content[:8], "little")
        self.about: dict[str, Any] = json.loads(content[8 : 8 + size])
        arrays, at = {}, 8 + size
        for name, dtype, shape in self.about["arrays"]:
            count = int(np.prod(shape))
            arrays[name] = np.frombuffer(content, dtype, count, at).reshape(shape)
            at += arrays[name].nbytes
        self.table, self.means = arrays["table"], arrays.get("means")
        self.fields = [_Field(field) for field in self.about["fields"]]
        self.offsets = np.array(self.about["offsets"])
        m, ranks = len(self.fields), self.about["ranks"]
        self.owner = np.tile(np.repeat(np.arange(m), ranks), len(self.offsets))
        output = np.repeat(np.arange(len(self.offsets)), sum(ranks))
        self.is_of = (output[:, None] == np.arange(len(self.offsets))).astype(float)  # (R, K)
        self.first = np.cumsum([0, *(field["size"] for field in self.about["fields"])])
        self.crosses: list[dict[tuple[int, ...], np.ndarray]] = []
        for k in range(len(self.about["crosses"])):
            codes = map(tuple, arrays[f"codes_{k}"].tolist())
            self.crosses.append(dict(zip(codes, arrays[f"evidence_{k}"], strict=True)))

    def brought(self, row: Row) -> np.ndarray:
        """What every field brings to every column, (m, R + K)"""
        out = np.zeros((len(self.fields), self.table.shape[1]))
        codes: list[int] = []
        for i, (field, found) in enumerate(zip(self.fields, self._coded(row, codes), strict=True)):
            for code, value in found:
                code = 0 if code >= field.about["size"] else code
                at = self.first[-1] + i if code < 0 else self.first[i] + code
                out[i] += value * self.table[at].astype(float)
        return out

    def _coded(self, row: Row, codes: list[int]) -> Iterator[list[tuple[int, float]]]:
        """Codes and values of every field; `codes` collects the first of each."""
        evidence: list[float] = []
        for field in self.fields:
            about = field.about
            if about["evidence"] is not None:
                evidence = evidence or self._evidence(codes)
                yield [field.of_number(evidence[about["evidence"]])]
                continue
            if about["column"] not in row:
                raise ValueError(
                    f"the row has no value for column {about['column']!r}; None means missing"
                )
            try:
                found = field(row[about["column"]])
            except ValueError as error:
                raise ValueError(f"column {about['column']!r}: {error}") from None
            codes.append(found[0][0])
            yield found

    def _evidence(self, codes: Sequence[int]) -> list[float]:
        """What crossed categories say, for every cross and target; nothing of those never seen."""
        out: list[float] = []
        nothing = np.zeros(self.about["n_targets"])
        for fields, known in zip(self.about["crosses"], self.crosses, strict=True):
            out += known.get(tuple(codes[i] for i in fields), nothing).tolist()
        return out

    def scores(self, rows: Iterable[Row]) -> np.ndarray:
        """z = sum_t p_t q_t + biases, (n, K): q_t is what the column's owner brings, p_t what all
        other fields bring."""
        found = [self._score(self.brought(row)) for row in rows]
        return np.array(found).reshape(-1, len(self.offsets))

    def _score(self, brought: np.ndarray) -> np.ndarray:
        R = len(self.owner)
        q = brought[self.owner, np.arange(R)]
        p = brought[:, :R].sum(axis=0) - q
        found: np.ndarray = (p * q) @ self.is_of + brought[:, R:].sum(axis=0) + self.offsets
        return found

    def predictions(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """What scores (n, K) stand for, a target each."""
        out, first = {}, 0
        for head in self.about["heads"]:
            part = z[:, first : first + head["size"]]
            first += head["size"]
            if head["loss"] == "softmax":
                small = np.exp(part - part.max(axis=1, keepdims=True))
                out[head["target"]] = small / small.sum(axis=1, keepdims=True)
                continue
            part = part[:, 0]
            if head["loss"] == "logistic":
                small = np.exp(-np.abs(part))
                part = np.where(part >= 0, 1 / (1 + small), small / (1 + small))
            elif head["loss"] == "poisson":
                part = np.exp(np.minimum(part, head["largest"]))
            out[head["target"]] = part
        return out

    def contributions(self, row: Row) -> tuple[Any, dict[str, Any]]:
        """With M what fields bring in the mean and B what the row's bring, field i adds
        b(B_i - M_i) + sum_j <B_i - M_i, (B_j + M_j) / 2>, where <,> is what two fields say."""
        if self.means is None:
            raise ValueError("the model does not know how often its categories were seen")
        R, M, B = len(self.owner), self.means, self.brought(row)
        base = self._score(M)
        away, halfway = (B - M), (B + M) / 2
        columns = np.arange(R)
        owners = halfway[self.owner, columns]
        mine = self.owner == np.arange(len(B))[:, None]  # (m, R)
        partners = np.where(mine, halfway[:, :R].sum(axis=0) - halfway[:, :R], owners)
        adds = (away[:, :R] * partners) @ self.is_of + away[:, R:]
        single = len(self.offsets) == 1
        out: dict[str, Any] = {}
        for field, added in zip(self.about["fields"], adds, strict=True):
            for name in (parents := field["cross"] or [field["name"]]):
                part = float(added[0]) if single else added
                out[name] = out.get(name, 0.0) + part / len(parents)
        return (float(base[0]) if single else base), out


@cache
def _model() -> _Model:
    return _Model(zlib.decompress(base64.b85decode(DATA.replace("\n", ""))))


def _main() -> None:
    """Rows of CSV in, with a header; predictions out."""
    sys.stdin.reconfigure(encoding="utf-8-sig", newline="")  # type: ignore[union-attr]
    csv.field_size_limit(sys.maxsize)
    model = _model()
    missing = set(model.about["null_words"])
    rows = csv.reader(sys.stdin)
    names = [name.strip() for name in next(rows, [])]
    print(",".join(model.about["shown"]))
    for number, cells in enumerate(rows, 1):
        if not cells:
            continue
        try:
            if len(cells) != len(names):
                raise ValueError(f"{len(cells)} values where there are {len(names)} columns")
            values = (None if cell in missing else cell for cell in cells)
            found = predict(dict(zip(names, values, strict=True)))
        except ValueError as error:
            sys.exit(f"row {number}: {error}")
        print(",".join(f"{p:.9g}" for p in _flat(found)))


def _flat(found: Any) -> list[float]:
    if isinstance(found, dict):
        return [number for part in found.values() for number in _flat(part)]
    return found if isinstance(found, list) else [found]


DATA = ""  # the model: JSON and arrays, compressed

if __name__ == "__main__":
    _main()
