"""How long explanations take: fields, pairs and the bound of a model of Criteo's size, the card of
a category, rows a second; and the report's page for as many categories.

    make bench-explain

Writes benchmarks/results/explain.json. Weights are drawn, not trained: the work is the same. Beside
our rows a second stand those of LightGBM's contributions, for a hundred trees on rows of the same
shape, in the same run.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.record import save, timed
from fieldwise import Field, FieldwiseModel, Layout, Schema, Target
from fieldwise.compare.paper import SIZES
from fieldwise.data.vocabulary import integer_vocabulary
from fieldwise.explain.learned import Learned
from fieldwise.objective import Objective

N_FIELDS, RANK, N_ROWS = 22, 8, 50_000
ROUNDS = 5


def model_of(layout: Layout, seed: int = 0) -> FieldwiseModel:
    """Random weights, counts that fall as in real tables."""
    random = np.random.default_rng(seed)
    counts = [np.maximum(1, 1e7 / np.arange(1, d + 1) ** 1.05).astype(int) for d in layout.sizes]
    fields = tuple(Field(name=f"field{i}", column=f"field{i}") for i in range(layout.n_fields))
    target = Target(column="click", classes=("0", "1"))
    words = integer_vocabulary(Schema(fields=fields, targets=(target,)), counts)
    shape = (layout.n_rows + layout.n_fields, layout.width)
    rows = random.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
    about = {"rows": 36_672_494}
    return FieldwiseModel(words, layout, rows, Objective(), np.zeros(1), about)


def fields_and_cards() -> dict[str, float]:
    model = model_of(Layout.of(SIZES["criteo"], rank_base=1.6))

    def fields() -> None:
        model.explain_fields()
        model.bound(delta=0.05)

    out = {"parameters": model.layout.n_parameters, "fields_and_bound_seconds": timed(fields)}
    learned: Learned = model.learned
    largest = int(np.argmax(model.layout.sizes))
    small = int(np.argmin(model.layout.sizes))
    for i in (largest, small):
        learned.card(i, 1)  # what is computed once for a field
    for name, i in (("large", largest), ("small", small)):
        codes = iter(range(1, 100))
        seconds = timed(lambda i=i, codes=codes: learned.card(i, next(codes) % 4), 15)
        out[f"card_of_a_{name}_field_seconds"] = seconds
    return out


def page() -> dict[str, float]:
    from fieldwise.report.numbers import report_numbers
    from fieldwise.report.page import page as drawn

    model = model_of(Layout.of(SIZES["criteo"], rank=4))
    begun = time.perf_counter()
    numbers = report_numbers(model, show=False)
    middle = time.perf_counter()
    text = drawn(numbers)
    return {
        "categories": numbers["categories"]["total"],
        "megabytes": len(text.encode()) / 1e6,
        "numbers_seconds": middle - begun,
        "page_seconds": time.perf_counter() - middle,
    }


def rows() -> dict[str, float]:
    import lightgbm

    layout = Layout.of((1000,) * N_FIELDS, rank=RANK)
    learned = model_of(layout).learned
    random = np.random.default_rng(1)
    codes = random.integers(0, 1000, (N_ROWS, N_FIELDS)).astype(np.int32)
    y = (random.random(N_ROWS) < 0.3).astype(int)
    settings = {"objective": "binary", "verbose": -1, "num_threads": 0}
    data = lightgbm.Dataset(codes, y, categorical_feature=list(range(N_FIELDS)))
    trees = lightgbm.train(settings, data, 100)
    some = codes[: N_ROWS // 10]
    work = {
        "rows_per_second": lambda: learned.rows(codes, None),
        "lightgbm_rows_per_second": lambda: trees.predict(some, pred_contrib=True),
    }
    n = {"rows_per_second": len(codes), "lightgbm_rows_per_second": len(some)}
    for call in work.values():
        call()
    out = {name: n[name] / timed(call, ROUNDS) for name, call in work.items()}
    pairs = timed(lambda: learned.rows(some, None).pairs, ROUNDS)
    return {**out, "rows_with_all_pairs_per_second": len(some) / pairs}


def main() -> None:
    figures = {"criteo": fields_and_cards(), "rows": rows(), "page": page()}
    for name, found in figures.items():
        print(name, {k: round(v, 4) for k, v in found.items()})
    print(f"written: {save('explain', 'make bench-explain', figures)}")


if __name__ == "__main__":
    main()
