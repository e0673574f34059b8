"""Synthetic tables of any size, drawn from a known field-wise model, so the best loss is known.

Codes follow a Zipf law in every field, from code 1 down to the rarest, which has the rare row 0;
labels follow a planted model (`maths.field_scores`). Every block of rows has a random stream of its
own, so block 7 is the same whatever was drawn before. The same rows can be written as a store or as
raw text in Criteo's and Avazu's formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from math import ceil, exp, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import SettingError
from ..files import write_atomically
from ..layout import Layout
from ..maths import scores
from ..progress import progress
from .schema import Field, Schema, Target
from .store import Store, StoreWriter

if TYPE_CHECKING:
    import polars as pl

__all__ = ["AVAZU_SIZES", "CRITEO_SIZES", "Synthetic", "synthetic"]

# fmt: off
CRITEO_SIZES = (
    46, 97, 116, 40, 221, 108, 81, 54, 91, 9, 29, 37, 53, 1415, 552, 56354, 52647, 294, 16, 11247,
    620, 4, 26104, 4880, 56697, 3154, 27, 9082, 57057, 11, 3954, 1842, 5, 56892, 16, 16, 28840, 69,
    23117,
)
AVAZU_SIZES = (
    241, 8, 8, 3697, 4614, 25, 5481, 329, 31, 381763, 1611748, 6793, 6, 5, 2509, 9, 10, 432, 5, 68,
    169, 61,
)
# fmt: on
SHAPES = {"criteo": CRITEO_SIZES, "avazu": AVAZU_SIZES}
BLOCK = 1 << 16
ZIPF = 1.05
PLANTED_RANK = 2
SCORE_SPREAD = 1.2  # standard deviation of the planted score


def synthetic(
    shape: str | Sequence[int] = "criteo", n_rows: int = 100_000, seed: int = 0
) -> Synthetic:
    """A table drawn from a known model, so that the best loss is known too.

    Parameters
    ----------
    shape : "criteo" or "avazu", the paper's tables, or the number of categories of each field.
    n_rows : how many rows to draw.
    seed : the same seed draws the same rows.
    """
    if isinstance(shape, str):
        if shape not in SHAPES:
            raise SettingError(f"shape={shape!r} is not one of 'criteo', 'avazu' or cardinalities")
        return Synthetic(SHAPES[shape], n_rows, seed)
    sizes = tuple(int(d) for d in shape)
    if not sizes or min(sizes) < 1:
        raise SettingError(f"cardinalities {sizes} must be at least one number, each at least 1")
    return Synthetic(sizes, n_rows, seed)


class Synthetic:
    """`layout` and `table` are the planted model; `block(k)` draws rows and their labels."""

    def __init__(self, sizes: Sequence[int], n_rows: int, seed: int) -> None:
        if n_rows < 1:
            raise SettingError(f"n_rows={n_rows} must be at least 1")
        self.sizes = tuple(sizes)
        self.n_rows = n_rows
        self.seed = seed
        self.layout = Layout.of(self.sizes, rank=PLANTED_RANK)
        self._cumulative = [_zipf(d) for d in self.sizes]

    @cached_property
    def strength(self) -> np.ndarray:
        """(m,) how strongly each field's models differ, falling from field to field by design."""
        order = self._random(1).permutation(len(self.sizes))
        return np.geomspace(1.0, 0.1, len(self.sizes))[order]

    @cached_property
    def _drawn(self) -> tuple[np.ndarray, float]:
        """The planted table, scaled to SCORE_SPREAD on a first block, and the intercept."""
        layout, random = self.layout, self._random(2)
        table = random.standard_normal((layout.n_rows, layout.width), dtype=np.float32)
        for i, strength in enumerate(self.strength):
            rows, columns = layout.own(i), layout.block(0, i)
            # U small everywhere, V and biases as strong as their field.
            table[:, columns] /= sqrt(len(self.sizes))
            table[rows, columns] *= strength * sqrt(len(self.sizes))
            table[rows, -1] *= strength
        sample = layout.rows(self._codes(0, min(BLOCK, 8192)))
        z = scores(table, layout, sample)[:, 0]
        # Scaling V and b scales the score.
        scale = SCORE_SPREAD / (z.std() + 1e-12)
        for i in range(len(self.sizes)):
            table[layout.own(i), layout.block(0, i)] *= scale
        table[:, -1] *= scale
        z *= scale
        return table, float(-1.1 - z.mean())  # about a quarter of the labels are 1

    @property
    def table(self) -> np.ndarray:
        return self._drawn[0]

    @property
    def intercept(self) -> float:
        return self._drawn[1]

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, *key])))

    def _codes(self, block: int, n: int) -> np.ndarray:
        random = self._random(3, block)
        codes = np.empty((n, len(self.sizes)), dtype=np.int32)
        for j, cumulative in enumerate(self._cumulative):
            drawn = np.searchsorted(cumulative, random.random(n))
            codes[:, j] = (drawn + 1) % len(cumulative)
        return codes

    @property
    def n_blocks(self) -> int:
        return -(-self.n_rows // BLOCK)

    def block(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """codes (n, m) int32, labels (n,) float32 and their probabilities (n,) float64."""
        n = min(BLOCK, self.n_rows - k * BLOCK)
        codes = self._codes(k, n)
        chance = np.empty(n)
        for start in range(0, n, 8192):  # keeps the gathered rows in cache
            part = self.layout.rows(codes[start : start + 8192])
            z = scores(self.table, self.layout, part)[:, 0] + self.intercept
            chance[start : start + 8192] = 1 / (1 + np.exp(-z.astype(np.float64)))
        labels = (self._random(4, k).random(n) < chance).astype(np.float32)
        return codes, labels, chance

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        return (self.block(k) for k in range(self.n_blocks))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """All codes (n, m) and labels (n,) in memory."""
        parts = [(codes, labels) for codes, labels, _ in self.blocks()]
        return np.concatenate([c for c, _ in parts]), np.concatenate([y for _, y in parts])

    def best_logloss(self) -> float:
        """The mean logloss of the planted probabilities on these labels: only by chance does a
        model do better."""
        total = 0.0
        for _, labels, chance in self.blocks():
            total -= float(np.sum(np.log(np.where(labels == 1, chance, 1 - chance))))
        return total / self.n_rows

    def schema(self) -> Schema:
        names = [f"f{j}" for j in range(len(self.sizes))]
        fields = tuple(Field(name=n, dtype="integer", min_count=1) for n in names)
        target = Target(column="label", classes=("0", "1"))
        return Schema(fields=fields, targets=(target,))

    def to_store(self, path: str | Path, *, overwrite: bool = False, show: bool = False) -> Store:
        """Write the codes as they are into a store: category k of a field is code k."""
        from .vocabulary import integer_vocabulary

        counts = [np.zeros(d, dtype=np.int64) for d in self.sizes]
        columns = {"codes": len(self.sizes), "target": 1}
        with (
            StoreWriter.create(path, columns, overwrite=overwrite) as writer,
            progress("drawing", self.n_rows, show=show) as tell,
        ):
            for codes, labels, _ in self.blocks():
                for j, count in enumerate(counts):
                    count += np.bincount(codes[:, j], minlength=len(count))
                writer.write(codes=codes, target=labels)
                tell(writer.n_rows)
            writer.finish(
                self.schema(), integer_vocabulary(self.schema(), counts).to_bytes(), counts
            )
        return Store(path)

    def to_text(self, path: str | Path, *, show: bool = False) -> Path:
        """Write raw text in the format of the shape: Criteo's train.txt or Avazu's train.csv."""
        if self.sizes not in SHAPES.values():
            raise SettingError("text needs the shape 'criteo' or 'avazu'; use to_store instead")
        criteo = self.sizes == CRITEO_SIZES
        path = Path(path)
        with progress("drawing", self.n_rows, show=show) as tell:

            def block(k: int) -> bytes:
                codes, labels, _ = self.block(k)
                frame = self._text_frame(codes, labels, k * BLOCK, criteo=criteo)
                tell(min((k + 1) * BLOCK, self.n_rows))
                separator = "\t" if criteo else ","
                text = frame.write_csv(separator=separator, include_header=k == 0 and not criteo)
                return text.encode()

            write_atomically(path, (block(k) for k in range(self.n_blocks)))
        return path

    @cached_property
    def _texts(self) -> list[pl.Series]:
        """For every field the text of each category."""
        import polars as pl

        texts = []
        words: list[str | None]
        for j, size in enumerate(self.sizes):
            if self.sizes == CRITEO_SIZES and j < 13:
                words = [_log_rule_value(k) for k in range(size)]
            elif self.sizes == AVAZU_SIZES and j == 0:
                start = datetime(2014, 10, 21)
                words = [f"{start + timedelta(hours=k):%y%m%d%H}" for k in range(size)]
            else:
                # Eight hexadecimal digits; an odd factor modulo 2^32 keeps names distinct.
                words = [f"{(k * 2654435761 + j * 40503) % (1 << 32):08x}" for k in range(size)]
            texts.append(pl.Series(words, dtype=pl.String))
        return texts

    def _text_frame(
        self, codes: np.ndarray, labels: np.ndarray, first: int, *, criteo: bool
    ) -> pl.DataFrame:
        import polars as pl

        from .readers import AVAZU_FIELDS, criteo_schema

        names = criteo_schema().names if criteo else AVAZU_FIELDS
        columns = {"label" if criteo else "click": pl.Series(labels.astype(np.int8))}
        if not criteo:
            columns = {"id": pl.Series(np.arange(first, first + len(codes))), **columns}
        for j, name in enumerate(names):
            columns[name] = self._texts[j].gather(pl.Series(codes[:, j].astype(np.uint32)))
        return pl.DataFrame(columns)


def _zipf(size: int) -> np.ndarray:
    weight = np.arange(1, size + 1, dtype=np.float64) ** -ZIPF
    cumulative = np.cumsum(weight) / weight.sum()
    cumulative[-1] = np.inf  # never past the end
    return cumulative


def _log_rule_value(category: int) -> str | None:
    """A number that the paper's log rule puts in this category; category 0 is missing."""
    if category == 0:
        return None
    if category <= 3:
        return str(category - 1)
    return str(ceil(exp(sqrt(category - 3))))
