"""What a model learned, by name: rows, fields, categories. Names come from the vocabulary, numbers
from this package's other files."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..blas import one_blas_thread, weighted_sum
from ..data.chunks import Chunk
from ..data.schema import Schema
from ..data.shuffle import wide_values
from ..data.vocabulary import UNSEEN_CODE, FieldVocabulary, Vocabulary
from ..errors import DataError, FieldwiseError, ModelError, SettingError, not_one_of
from ..layout import Layout
from ..objective import Objective
from .categories import (
    SEEN,
    CategoryCard,
    CategoryModels,
    Comparison,
    Difference,
    Partner,
    confidence,
    information,
)
from .fields import FieldImportance, field_importance
from .rows import Explanation, Marginals, RowExplainer

if TYPE_CHECKING:
    from ..data.words import StoredWords

__all__ = ["Learned", "output_names", "output_number"]

RARE, MISSING = "(rare)", "(missing)"
LONG = 300  # letters of a category to show
SEARCHED = 20_000  # categories to compare a misspelt one with


class Learned:
    """All explanations of a model, computed on demand.

    rows (d + m, R + K) as in a model, offsets (K,), moments (d, 2) where fields carry values; noise
    is the root mean square error of every target that is a number, shift what was added to scores
    because negatives were downsampled; weighted: whether rows had weights.
    """

    def __init__(
        self,
        words: Vocabulary | StoredWords,
        layout: Layout,
        rows: np.ndarray,
        objective: Objective,
        offsets: np.ndarray,
        *,
        moments: np.ndarray | None = None,
        noise: Sequence[float | None] = (),
        shift: float = 0.0,
        weighted: bool = False,
    ) -> None:
        if objective.is_vote:
            raise ModelError(
                "the prediction of a vote is not a sum of its fields' scores, so it cannot be "
                "split among them; field_scores has the score of every field"
            )
        self.counts = words.counts()
        if not self.counts.any():
            raise ModelError(
                "the model does not know how often its categories were seen, which explanations "
                "need; train it again from its table"
            )
        self.words, self.layout, self.schema = words, layout, words.schema
        self._objective, self._shift, self._weighted = objective, shift, weighted
        self._noise = list(noise) or [None] * len(objective.heads)
        self.outputs = output_names(self.schema, objective)
        marginals = Marginals.of_counts(layout, self.counts, moments, self.schema.valued)
        self.explainer = RowExplainer(rows, layout, marginals, offsets)
        self._models: dict[int, CategoryModels] = {}
        self._labels: dict[int, list[str]] = {}

    def rows(self, codes: np.ndarray, values: np.ndarray | None) -> Explanation:
        """The explanation of coded rows."""
        wide = wide_values(codes, values, self.schema.valued)
        single = self.layout.n_outputs == 1
        main, shapley, _ = self.explainer(codes, wide)

        def pairs() -> np.ndarray:
            found = self.explainer(codes, wide, pairs=True)[2]
            return found[:, 0] if single else found

        return Explanation(
            float(self.explainer.base[0]) if single else self.explainer.base,
            main[:, 0] if single else main,
            shapley[:, 0] if single else shapley,
            self.schema.names,
            lambda: self.words.decode(codes, values),
            pairs,
            {f.name: f.cross for f in self.schema.fields if f.cross},
        )

    def output(self, name: str | None) -> int:
        """The index of an output; unless named the last, which of two classes is the second."""
        return output_number(self.outputs, name)

    @one_blas_thread()
    def fields(self, output: str | None = None) -> FieldImportance:
        o = self.output(output)
        found = field_importance(self.explainer, self.schema.names, o, self.outputs[o])
        if len(self.outputs) > 1:  # importance for this output alone
            models, sizes = self.models(output), self.layout.sizes
            for i, size in enumerate(sizes):
                found.importance[i] = np.linalg.norm(models.distances(i)) / size
        # A linear number has one model, so there are no differences between models.
        found.importance[[f.is_linear for f in self.schema.fields]] = 0.0
        return found

    def models(self, output: str | None = None) -> CategoryModels:
        o = self.output(output)
        if o not in self._models:
            self._models[o] = CategoryModels(self.explainer, self.counts, o)
        return self._models[o]

    def labels(self, i: int) -> list[str]:
        """The text to show for each code of a field."""
        if i not in self._labels:
            every = self.words.fields[i].labels()
            self._labels[i] = [MISSING if x is None else x[:LONG] for x in every]
        return self._labels[i]

    def find(self, field: str, value: Any) -> tuple[int, int, str]:
        """The index of a field, the code of a category in it, and a note on that category."""
        words = self.words[field]
        i = self.schema.names.index(words.field.name)
        if words.field.is_linear:
            is_missing = value is None or value == MISSING
            return i, int(is_missing), "" if is_missing else "a number, kept as it is"
        found = _entry(words, value)
        if found is None and value == MISSING:
            found = _entry(words, None)
        if found is None and value == RARE:
            if not self.counts[self.layout.own(i)][0]:
                raise DataError(f"field {field!r}: no category was too rare for its own model")
            return i, 0, "all categories too rare for a model of their own"
        if found is None:
            raise self._unknown(i, value)
        code, count = found
        note = ""
        if code == 0:
            note = f"{value!r} was seen {count:,} times, too rarely for a model of its own: "
            note += "it shares this one with all rare categories"
        return i, code, note

    def _unknown(self, i: int, value: Any) -> DataError:
        labels = self.labels(i)
        near = difflib.get_close_matches(str(value), labels[:SEARCHED], n=1, cutoff=0.5)
        some = ", ".join(labels[1:6]) + (", ..." if len(labels) > 6 else "")
        hint = f" Did you mean {near[0]!r}?" if near else f" It has {some}"
        name = self.schema.names[i]
        return DataError(f"field {name!r}: {value!r} was never seen in training.{hint}")

    def category(
        self, field: str, value: Any, *, n: int = 3, output: str | None = None
    ) -> CategoryCard:
        """The card of a category, with `n` partners for and `n` against in every other field."""
        i, code, note = self.find(field, value)
        return self.card(i, code, n=n, output=output, note=note)

    def card(
        self, i: int, code: int, *, n: int = 3, output: str | None = None, note: str = ""
    ) -> CategoryCard:
        """The same for a field's index and a code."""
        models, own = self.models(output), self.layout.own(i)
        row = own.start + code
        partners, weights = {}, models.weights(row)
        for j, name in enumerate(self.schema.names):
            if j != i and self.layout.ranks[i]:
                ends = models.strongest(weights, j, n)
                high, low = (self._partners(models, row, j, weights, end) for end in ends)
                partners[name] = (high, low)
        distances, seen = models.distances(i), self.counts[own] > 0
        seen[code] = True
        near, apart = models.nearest(row, 5)
        main, error = float(models.main[row]), self._error(models, row)
        return CategoryCard(
            field=self.schema.names[i],
            category=self.labels(i)[code],
            output=self.outputs[models.output],
            count=int(self.counts[row]),
            share=int(self.counts[row]) / max(models.n_rows, 1),
            bias=float(models.bias[row]),
            main=main,
            error=error,
            confidence=confidence(main, error),
            distance=float(distances[code]),
            typical=models.typical(i),
            oddity=1 + int(np.count_nonzero(distances[seen] > distances[code])),
            size=int(np.count_nonzero(seen)),
            note=note,
            partners=partners,
            nearest=[
                (self.labels(i)[r - own.start], float(d)) for r, d in zip(near, apart, strict=True)
            ],
        )

    def _partners(
        self, models: CategoryModels, row: int, j: int, weights: np.ndarray, rows: np.ndarray
    ) -> list[Partner]:
        labels, first = self.labels(j), self.layout.own(j).start
        effects = models.effects(row, rows)
        return [
            Partner(labels[r - first], float(weights[r]), float(effect), int(self.counts[r]))
            for r, effect in zip(rows, effects, strict=True)
        ]

    def _error(self, models: CategoryModels, row: int) -> float | None:
        """The standard error of a main effect from its number of rows, if everything else were
        known; None if rows have weights, which counts do not."""
        if self._weighted:
            return None
        h, place = self._objective.place_of(models.output)
        loss, outputs = self._objective.heads[h].loss, self._objective.outputs[h]
        i = models.field_of(row)
        # The scores of the category's own rows, on average, as they were in training.
        z = self.explainer.base + self.explainer.worth[row] - self._shift
        z = z - self.explainer.middle[i]
        told = information(loss, z[outputs], place, self._noise[h])
        square = float(self.explainer.marginals.square[row]) * models.n_rows
        if not told or not square > 0:
            return None
        own = slice(row, row + 1)
        value = 1.0
        if self.layout.slots[i] > 1:
            value = float(models.usual_value(own, self.explainer.marginals.weight)[0])
        return float(value / np.sqrt(told * square))

    def compare(
        self, field: str, first: Any, second: Any, *, n: int = 10, output: str | None = None
    ) -> Comparison:
        """Where the models of two categories of a field differ most: n partners in all."""
        (i, a, _), (_, b, _) = self.find(field, first), self.find(field, second)
        if a == b:
            raise SettingError(f"{first!r} and {second!r} share one model of {field!r}")
        models, own = self.models(output), self.layout.own(i)
        rows = (own.start + a, own.start + b)
        weights = [models.weights(row) for row in rows]
        gap = weights[0] - weights[1]
        ends = [models.strongest(gap, j, n) for j in range(self.layout.n_fields) if j != i]
        partners = np.concatenate([end for pair in ends for end in pair] or [np.empty(0, int)])
        partners = partners[np.argsort(-np.abs(gap[partners]), kind="stable")[:n]]
        effects = models.effects(rows[0], partners) - models.effects(rows[1], partners)
        labels = self.labels(i)
        return Comparison(
            field=self.schema.names[i],
            first=labels[a],
            second=labels[b],
            output=self.outputs[models.output],
            counts=(int(self.counts[rows[0]]), int(self.counts[rows[1]])),
            bias=(float(models.bias[rows[0]]), float(models.bias[rows[1]])),
            main=(float(models.main[rows[0]]), float(models.main[rows[1]])),
            distance=models.between(*rows),
            typical=models.typical(i),
            fields=self._apart(i, gap),
            differences=[
                self._difference(models, r, weights, effect)
                for r, effect in zip(partners, effects, strict=True)
            ],
        )

    def _apart(self, i: int, gap: np.ndarray) -> list[tuple[str, float]]:
        """The root mean square difference of weights, for every field but i, largest first."""
        found = []
        for j, name in enumerate(self.schema.names):
            own = self.layout.own(j)
            if j != i:
                square = weighted_sum(
                    self.explainer.marginals.square[own], gap[own].astype(np.float64) ** 2
                )
                found.append((name, float(np.sqrt(square))))
        return sorted(found, key=lambda pair: -pair[1])

    def _difference(
        self, models: CategoryModels, row: int, weights: Sequence[np.ndarray], effect: float
    ) -> Difference:
        j = models.field_of(row)
        first, second = float(weights[0][row]), float(weights[1][row])
        label = self.labels(j)[row - self.layout.own(j).start]
        name = self.schema.names[j]
        count = int(self.counts[row])
        return Difference(name, label, first, second, first - second, float(effect), count)

    def odd(self, n: int = 20, output: str | None = None) -> list[dict[str, Any]]:
        """The categories farthest from their field's mean, relative to the field's typical
        distance, among those seen at least `SEEN` times."""
        models, found = self.models(output), []
        for i, name in enumerate(self.schema.names):
            own = self.layout.own(i)
            often = np.flatnonzero(self.counts[own] >= SEEN)
            if len(often) < 3:
                continue
            distances = models.distances(i)
            typical = float(np.median(distances[often]))
            often = often[distances[often] > typical]
            for code in often[np.argsort(-distances[often], kind="stable")[:n]]:
                apart = float(distances[code])
                about = {"field": name, "category": self.labels(i)[code], "distance": apart}
                about |= {"count": int(self.counts[own.start + code]), "typical": typical}
                found.append((apart / max(typical, 1e-12), about))
        found.sort(key=lambda pair: -pair[0])
        return [about for _, about in found[:n]]


def output_number(names: Sequence[str], name: str | None) -> int:
    """The index of an output by its name; the last if None."""
    if name is None:
        return len(names) - 1
    if name not in names:
        raise not_one_of(f"output {name!r}", name, names)
    return names.index(name)


def output_names(schema: Schema, objective: Objective) -> list[str]:
    """The name of every output: its target, or a class of it."""
    several = len(schema.targets) > 1
    names = []
    for head, target in zip(objective.heads, schema.targets, strict=True):
        if head.size > 1:
            names += [f"{target.column}={c}" if several else c for c in target.classes]
        elif target.classes and not several:
            names.append(target.classes[-1])
        else:
            names.append(target.column)
    return names


def _entry(words: FieldVocabulary, value: Any) -> tuple[int, int] | None:
    """The code of a value, as the vocabulary or a table has it, and how often it was seen; None if
    never."""
    try:
        str(value).encode()
    except UnicodeEncodeError:  # half a character: no table could have held it
        return None
    name = pl.col("category")
    found = words.entries.filter(name.is_null() if value is None else name == str(value))
    if len(found):
        return int(found["code"][0]), int(found["count"][0])
    field = replace(words.field, unseen="mean", n_slots=1)
    if field.is_list:
        field = replace(field, kind="category", separator=None)
    alone = replace(words, field=field).alone()
    for meant in (value, _number(value)):
        try:
            codes, _ = alone.encode(Chunk(pl.Series(field.column, [meant]).to_frame()))
        except (FieldwiseError, pl.exceptions.PolarsError):
            continue
        code = int(codes[0, 0])
        if code != UNSEEN_CODE:
            return code, int(words.counts()[code])
    return None


def _number(value: Any) -> Any:
    """A number typed as text to the number; other values unchanged."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
