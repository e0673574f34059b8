"""Rows in, predictions and explanations out: a loaded model and what is derived from it once."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import polars as pl

from ..data.schema import Target
from ..data.single import RowCoder
from ..errors import FieldwiseError
from ..losses import LOSSES
from ..model import FieldwiseModel
from ..objective import Head
from .describe import Description
from .limits import Refusal

__all__ = ["Served", "check_finite", "too_long"]

FEW = 64  # rows that are scored at once, without a thread
BLOCK = 512  # rows between two checks of the deadline
TURN = 0.002  # seconds of work before other requests get their turn
UNREADABLE = (
    *(FieldwiseError, ValueError, TypeError, OverflowError),
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException),
)
PLAIN = {str, int, float, bool, type(None)}


class Served:
    """A model with its id. Rows are checked and coded one by one, and scored together."""

    def __init__(self, model: FieldwiseModel, id: str, loaded_at: float = 0.0) -> None:
        self.model, self.id, self.loaded_at = model, id, loaded_at
        schema = model.schema
        words: Any = model.vocabulary
        self._crossed = words if words.evidence is not None else None
        self.coder = RowCoder(model.base_vocabulary)
        self.columns = frozenset(schema.columns)
        self.ignored = frozenset((*schema.dropped, *schema.roles))
        self._lists = {f.column for f in schema.fields if f.is_list}
        self.fields = [f for f in schema.fields if not f.cross]
        self.description = Description(model, id)

    @property
    def is_explaining(self) -> bool:
        """Whether an explanation was ever asked for: the first one takes longer."""
        return "learned" in self.model.__dict__

    def is_quick(self, n_rows: int, *, explain: bool) -> bool:
        """Whether so few rows need no thread; other requests wait while they are scored."""
        if self.model.boosted is not None:
            return n_rows <= FEW // 8 and not explain
        few = FEW // 8 if explain else FEW
        return n_rows <= few and (self.is_explaining or not explain)

    def warm(self, *, explaining: bool) -> None:
        """Do in advance all that a first request would wait for."""
        try:
            codes, values = self.code([self.description.usual_row()])
        except UNREADABLE:  # not every table has a usual row
            return
        self.score(codes, values)
        if explaining:
            self.model.explain_codes(codes, values)

    def check(self, row: Any, what: int | str, max_text: int | None = None) -> None:
        """Raise unless this is a row of the model's table; `what` is its number or name."""
        if type(row) is not dict:
            told = f"{_label(what)} is {_kind(row)}; a row is an object of columns and values"
            raise Refusal(422, told)
        if row.keys() != self.columns:
            self.check_columns(row, _label(what))
        if not PLAIN.issuperset(map(type, row.values())):
            self._check_values(row, _label(what))
        if max_text is not None:
            self._check_texts(row, _label(what), max_text)

    def check_context(self, context: dict[str, Any], over: str, max_text: int) -> None:
        """The same for a row in which the field that is ranked may be missing."""
        columns = {**{c: c for c in self.columns}, **{f.name: f.column for f in self.fields}}
        if over not in columns:
            raise Refusal(422, f"over is {self.unknown(over)}")
        self.check({columns[over]: None, **context}, "the context", max_text)

    def check_columns(self, row: Mapping[str, Any], what: str) -> None:
        missing = [c for c in self.model.schema.columns if c not in row]
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise Refusal(
                422, f"{what} has no value for column {missing[0]!r}{more}; null means missing"
            )
        unknown = [c for c in row if c not in self.columns and c not in self.ignored]
        if unknown:
            raise Refusal(422, f"{what} has {self.unknown(unknown[0])}")

    def unknown(self, name: str) -> str:
        """The words for a column that the model does not know."""
        near = difflib.get_close_matches(name[:100], sorted(self.columns), n=3)
        if near:
            near_it = ", ".join(near)
            return f"a column {name[:100]!r} that the model does not know; near it are {near_it}"
        some = ", ".join(self.model.schema.columns[:8])
        more = ", ..." if len(self.columns) > 8 else ""
        return f"a column {name[:100]!r} that the model does not know; it knows {some}{more}"

    def _check_values(self, row: Mapping[str, Any], what: str) -> None:
        for name, value in row.items():
            if type(value) in PLAIN or name not in self.columns:
                continue
            items = value if type(value) is list and name in self._lists else None
            if items is None or not all(map(_is_item, items)):
                wanted = "a list of texts or numbers" if name in self._lists else "one value"
                raise Refusal(422, f"{what}: column {name!r} takes {wanted}, not {_kind(value)}")

    def _check_texts(self, row: Mapping[str, Any], what: str, most: int) -> None:
        for name, value in row.items():
            for item in value if type(value) is list else (value,):
                if type(item) is str and len(item) > most:
                    raise Refusal(422, too_long(what, name, len(item), most))

    def code(self, rows: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        """codes and values of checked rows"""
        return self._joined([self.coder(row) for row in rows])

    async def code_in_turns(
        self, rows: Sequence[Any], max_text: int | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same for rows not checked yet, with pauses for other requests."""
        found, begun = [], time.perf_counter()
        for n, row in enumerate(rows):
            self.check(row, n, max_text)
            try:
                found.append(self.coder(row))
            except UNREADABLE as error:  # a field that cannot take the value
                told = str(error) if isinstance(error, FieldwiseError) else f"row 1: {error}"
                raise Refusal(422, told.replace("row 1:", f"row {n + 1}:", 1)) from error
            if time.perf_counter() - begun > TURN:
                await asyncio.sleep(0)
                begun = time.perf_counter()
        return self._joined(found)

    def _joined(
        self, coded: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        codes, values = coded[0]
        if len(coded) > 1:
            codes = np.concatenate([c for c, _ in coded])
            values = np.concatenate([v for _, v in coded])
        if self._crossed is not None:
            found: tuple[np.ndarray, np.ndarray] = self._crossed.extended(
                codes, values, self._crossed.evidence.of(codes)
            )
            return found
        return codes, values

    def predict(
        self,
        rows: Sequence[Mapping[str, Any]],
        codes: np.ndarray,
        values: np.ndarray,
        *,
        explain: bool,
        deadline: float,
    ) -> list[dict[str, Any]]:
        """The predictions of checked and coded rows; a TimeoutError after `deadline`."""
        found: list[dict[str, Any]] = []
        for low in range(0, len(rows), BLOCK):
            part = slice(low, low + BLOCK)
            some = self.score(codes[part], values[part], low)
            if explain:
                self._explain(rows[part], codes[part], values[part], some)
            found += some
            if time.monotonic() > deadline:
                raise TimeoutError
        return found

    def rank(self, context: Mapping[str, Any], over: str, k: int) -> list[dict[str, Any]]:
        """The k best categories of a field in a context, best first."""
        model: Any = self.model
        found: list[dict[str, Any]] = model.rank(context, over=over, k=k).to_dicts()
        return found

    def score(self, codes: np.ndarray, values: np.ndarray, before: int = 0) -> list[dict[str, Any]]:
        """The predictions of coded rows, which come after `before` others; with several targets,
        by the target's name."""
        model = self.model
        z = model.score_codes(codes, values, 1 if len(codes) <= FEW else None)
        check_finite(z, before)
        chosen = model.choices(codes, values) if model.objective.is_vote else None
        parts = []
        for k, (head, target, own) in enumerate(self.heads(z)):
            parts.append(_answers(head, target, own, None if chosen is None else chosen[k]))
        if len(parts) == 1:
            return parts[0]
        names = [target.column for target in model.schema.targets]
        return [{"targets": dict(zip(names, row, strict=True))} for row in zip(*parts, strict=True)]

    def heads(self, z: np.ndarray) -> Iterator[tuple[Head, Target, np.ndarray]]:
        """Every head with its target and its scores (n,) or (n, classes)."""
        objective = self.model.objective
        pairs = zip(objective.heads, self.model.schema.targets, strict=True)
        return ((*pair, own) for pair, own in zip(pairs, objective.by_head(z), strict=True))

    def _explain(
        self,
        rows: Sequence[Mapping[str, Any]],
        codes: np.ndarray,
        values: np.ndarray,
        answers: list[dict[str, Any]],
    ) -> None:
        """Add to every answer what the fields of the table add to its score."""
        found = self.model.explain_codes(codes, values).credited()
        n, names = len(rows), list(found.names)
        shapley = found.shapley.reshape(n, -1, len(names))
        base = np.reshape(found.base, -1)
        shown = [self._part(i, codes) if f.part else None for i, f in enumerate(self.fields)]
        for r, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            texts = [
                _text(row[f.column] if part is None or part[r] is None else part[r])
                for f, part in zip(self.fields, shown, strict=True)
            ]
            targets = self.model.schema.targets
            for target, outputs in zip(targets, self.model.objective.outputs, strict=True):
                own = answer["targets"][target.column] if "targets" in answer else answer
                at = outputs[target.classes.index(own["class"]) if len(outputs) > 1 else 0]
                parts = zip(names, texts, shapley[r, at].tolist(), strict=True)
                own["explanation"] = {
                    "base": float(base[at]),
                    "contributions": [
                        {"field": name, "value": text, "contribution": value}
                        for name, text, value in parts
                    ],
                }

    def _part(self, i: int, codes: np.ndarray) -> list[Any]:
        """The values of coded rows in a field that is a part of a time."""
        slot = int(self.model.layout.slot_starts[i])
        return self.model.vocabulary.fields[i].decode(codes[:, slot], None).to_list()


def _answers(
    head: Head, target: Target, z: np.ndarray, chosen: np.ndarray | None
) -> list[dict[str, Any]]:
    """prediction, score, class and probabilities of every row, of one target"""
    if len(z) == 1 and head.loss == "logistic" and chosen is None:
        return [_one_chance(target, float(z[0]))]
    predicted = LOSSES[head.loss].prediction(z.astype(np.float64))
    scores = z.tolist()
    if head.size > 1:
        chosen = z.argmax(axis=1) if chosen is None else chosen
        classes = target.classes
        return [
            {
                "prediction": chances[k],
                "score": score[k],
                "class": classes[k],
                "probabilities": dict(zip(classes, chances, strict=True)),
            }
            for chances, score, k in zip(predicted.tolist(), scores, chosen.tolist(), strict=True)
        ]
    pairs = zip(predicted.tolist(), scores, strict=True)
    if not head.is_class or not target.classes or target.kind == "share":
        return [{"prediction": p, "score": score} for p, score in pairs]
    chosen = z > 0 if chosen is None else chosen
    return [
        {"prediction": p, "score": score, "class": target.classes[k]}
        for (p, score), k in zip(pairs, chosen.tolist(), strict=True)
    ]


def _one_chance(target: Target, z: float) -> dict[str, Any]:
    """The same for one row and two classes, bit for bit, without arrays, which would take longer
    than all the rest."""
    small = float(np.exp(-abs(z)))
    out = {"prediction": (1.0 if z >= 0 else small) / (1.0 + small), "score": z}
    if target.classes and target.kind != "share":
        return {**out, "class": target.classes[z > 0]}
    return out


def check_finite(z: np.ndarray, before: int = 0) -> None:
    """Raise if a row's score is not finite, (n,) or (n, K); rows come after `before` others."""
    if len(z) == 1 and z.ndim == 1 and isfinite(z[0]):
        return
    if not np.isfinite(z).all():
        n = before + int(np.argmin(np.isfinite(z.reshape(len(z), -1)).all(axis=1)))
        raise Refusal(
            422, f"row {n + 1} has no finite score: a number in it is far outside those of training"
        )


def too_long(what: str, name: str, n: int, most: int) -> str:
    return f"{what}: column {name!r} holds a text of {n:,} letters, and {most:,} is the most"


def _is_item(item: Any) -> bool:
    """Whether this is a value of a list, perhaps with its weight."""
    if type(item) is dict:
        return len(item) == 2 and PLAIN.issuperset(map(type, item.values()))
    return type(item) in PLAIN


def _text(value: Any) -> str | None:
    """A value as text to show."""
    if value is None or isinstance(value, str):
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is list:
        return ", ".join(str(_text(item)) for item in value)
    return str(value)


def _label(what: int | str) -> str:
    return what if isinstance(what, str) else f"row {what + 1}"


def _kind(value: Any) -> str:
    """A value's type in JSON's terms."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
    return "null" if value is None else kinds.get(type(value), "a number")
