"""Which flights are late? Train on a slice of the year, look at what was learned, write the report.

python examples/flights.py [FOLDER]        (pip install "fieldwise[report]" for the report)
"""

from __future__ import annotations

import sys
from pathlib import Path

from sklearn.metrics import log_loss, roc_auc_score

from fieldwise import FieldwiseClassifier, load_flights
from fieldwise.report import report_numbers
from fieldwise.report.page import page


def main(folder: Path) -> None:
    flights = load_flights().sample(24_000, seed=0, shuffle=True)
    train, test = flights.head(20_000), flights.tail(4_000)
    X, y = test.drop("late"), test["late"]

    clf = FieldwiseClassifier()
    clf.fit(train.drop("late"), train["late"])
    chances = clf.predict_proba(X)[:, 1]
    base = log_loss(y, [train["late"].mean()] * len(y))
    print(f"logloss {log_loss(y, chances):.4f}, without any column {base:.4f}")
    print(f"AUC {roc_auc_score(y, chances):.4f}")

    print("\nwhich fields matter:")
    fields = clf.explain_fields()
    for name, share in sorted(zip(fields.names, fields.share, strict=True), key=lambda f: -f[1])[
        :5
    ]:
        print(f"  {name:16} {share:6.1%} of the score's variance, by itself")

    print("\nthe flight most likely to be late, and what says so:")
    row = int(chances.argmax())
    one = clf.explain(X[row])
    parts = sorted(zip(one.names, one.shapley[0], strict=True), key=lambda part: -abs(part[1]))
    print(f"  chance {chances[row]:.3f}, score {clf.decision_function(X[row])[0]:+.3f}")
    print(f"  {'of an average row':28} {one.base:+.3f}")
    for name, adds in parts[:5]:
        print(f"  {name + ' = ' + str(X[name][row]):28} {adds:+.3f}")
    rest = sum(adds for _, adds in parts[5:])
    print(f"  {'all other fields':28} {rest:+.3f}")

    clf.model_.save(folder / "late.model", overwrite=True)
    # Of a model fitted from X and y the target has no other name than y.
    numbers = report_numbers(clf.model_, test.rename({"late": "y"}), show=False)
    (folder / "late.html").write_text(page(numbers))
    print("\nwritten: late.model, late.html")


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out")
    place.mkdir(exist_ok=True)
    main(place)
