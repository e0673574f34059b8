"""What each part of the presets brings: the same fits without it, judged on the validation rows.

    python -m benchmarks.ablations [TABLES]     goes on where it was stopped; writes ablations.json

One fit each, with seed 0 and the split of `benchmarks.presets`; the test rows are not read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter as clock
from typing import Any

from benchmarks.compare import ROOT
from benchmarks.presets import TABLES, compiled, losses, present, split_of
from benchmarks.record import save
from fieldwise import FieldwiseClassifier
from fieldwise.crosses import search
from fieldwise.files import write_atomically

WORK = ROOT / "build" / "ablations"
LONGEST = search.LONGEST
# What a variant is called, its settings, and the fields a cross may have.
VARIANTS: dict[str, tuple[dict[str, Any], int]] = {
    "fast": ({"preset": "fast"}, LONGEST),
    "fast, decay 1e-5 whatever the counts": ({"preset": "fast", "weight_decay": 1e-5}, LONGEST),
    "fast, the last table of an epoch": ({"preset": "fast", "averages": 1}, LONGEST),
    "fast, four members": ({"preset": "fast", "n_members": 4}, LONGEST),
    "glass": ({"preset": "glass"}, LONGEST),
    "glass, no crosses": ({"preset": "glass", "crosses": []}, LONGEST),
    "glass, crosses of two": ({"preset": "glass"}, 2),
    "glass, four members": ({"preset": "glass", "n_members": 4}, LONGEST),
    "best": ({"preset": "best"}, LONGEST),
    "best, no crosses": ({"preset": "best", "crosses": []}, LONGEST),
    "best, crosses of two": ({"preset": "best"}, 2),
}


@contextmanager
def crosses_up_to(n_fields: int) -> Iterator[None]:
    kept = search.find_crosses.__kwdefaults__["longest"]
    search.find_crosses.__kwdefaults__["longest"] = n_fields
    try:
        yield
    finally:
        search.find_crosses.__kwdefaults__["longest"] = kept


def measured(table: str, variant: str) -> dict[str, float]:
    """Validation logloss and seconds, from the file an earlier run left or from a fit."""
    file = WORK / table / f"{variant}.json"
    if file.is_file():
        return dict(json.loads(file.read_text()))
    settings, longest = VARIANTS[variant]
    (X, y), validation, _ = split_of(table, 0)
    compiled(settings["preset"])
    with crosses_up_to(longest):
        begun = clock()
        model = FieldwiseClassifier(random_state=0, **settings).fit(X, y, eval_set=validation)
        seconds = clock() - begun
    loss = losses(model.predict_proba(validation[0])[:, 1], validation[1]).mean()
    found = {"validation_logloss": float(loss), "seconds": seconds}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(found).encode())
    print(f"{table}, {variant}: {loss:.4f}, {seconds:.1f} s", flush=True)
    return found


def main(tables: Sequence[str]) -> None:
    figures = {
        table: {variant: measured(table, variant) for variant in VARIANTS}
        for table in present(tables)
    }
    save("ablations", "make bench-presets", {"tables": figures})


if __name__ == "__main__":
    main(sys.argv[1].split(",") if len(sys.argv) > 1 else TABLES)
