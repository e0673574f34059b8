"""LightGBM's texts from a stranger: what passes loads and predicts, none ends the process."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import warnings

import lightgbm
import numpy as np
import pytest

from fieldwise import ModelError
from fieldwise.boosted import OBJECTIVES, Boosted
from fieldwise.tree_text import DEEPEST, check_trees

N_FEATURES = 4
X = np.random.default_rng(0).normal(size=(400, N_FEATURES))


def trained(objective: str = "binary", features: np.ndarray = X, **more) -> lightgbm.Booster:
    n = more.get("num_class", 2)
    y = (np.abs(X[:, 0]) * 2).astype(int) % n
    settings = {"objective": objective, "verbosity": -1, "min_data_in_leaf": 5, **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightgbm.train(settings, lightgbm.Dataset(features, y), 4)


@pytest.mark.parametrize("objective", sorted({*OBJECTIVES.values(), "cross_entropy"}))
def test_what_lightgbm_writes_passes(objective):
    more = {"num_class": 3} if objective == "multiclass" else {}
    n = more.get("num_class", 1)
    y = np.arange(400) % max(n, 2)
    for features in (X, np.zeros_like(X), np.where(X > 1, np.nan, X)):
        trees = trained(objective, features, **more)
        once_more = lightgbm.Booster(model_str=trees.model_to_string())
        for one in (trees, once_more, trees.refit(features, y)):
            check_trees(one.model_to_string(num_iteration=3), N_FEATURES, n)


TEXT = trained().model_to_string()
CHAIN = [str(k) for k in range(1, DEEPEST + 1)]
LONG = {
    "num_leaves": str(DEEPEST + 2),
    **dict.fromkeys(("split_feature", "decision_type"), " ".join(["0"] * (DEEPEST + 1))),
    **dict.fromkeys(
        ("split_gain", "threshold", "internal_value", "internal_weight", "internal_count"),
        " ".join(["1"] * (DEEPEST + 1)),
    ),
    **dict.fromkeys(("leaf_value", "leaf_weight", "leaf_count"), " ".join(["1"] * (DEEPEST + 2))),
    "left_child": " ".join([*CHAIN, str(-DEEPEST - 2)]),
    "right_child": " ".join(str(-k - 1) for k in range(DEEPEST + 1)),
}


def resized(text: str) -> str:
    """With sizes of trees as they are now."""
    trees = re.split(r"(?=^Tree=)", text.partition("end of trees")[0], flags=re.M)[1:]
    sizes = " ".join(str(len(tree)) for tree in trees)
    return re.sub(r"^tree_sizes=.*", f"tree_sizes={sizes}", text, count=1, flags=re.M)


def put(**lines: str) -> str:
    """The text with other lines, the first of each name."""
    text = TEXT
    for name, value in lines.items():
        text, n = re.subn(rf"^{name}=.*", f"{name}={value}", text, count=1, flags=re.M)
        assert n == 1, name
    return resized(text)


def setting(name: str, value: str) -> str:
    text, n = re.subn(rf"^\[{name}: .*", f"[{name}: {value}]", TEXT, flags=re.M)
    assert n == 1, name
    return text


HOSTILE = {
    "nothing": "",
    "half": TEXT[: len(TEXT) // 2],
    "NUL": TEXT.replace("Tree=1", "\0"),
    "a circle": put(left_child=re.sub(r"^\S+", "0", TEXT.split("left_child=")[1].split("\n")[0])),
    "a child far away": put(left_child="50000000"),
    "a leaf far away": put(right_child="-50000000"),
    "too deep": put(**LONG),
    "a feature far away": put(split_feature="500000000"),
    "a negative feature": put(split_feature="-1"),
    "many leaves": put(num_leaves="2000000000"),
    "no leaves": put(num_leaves="0"),
    "fewer leaves": put(num_leaves="3"),
    "categories": put(num_cat="1"),
    "categorical": put(decision_type="3" + TEXT.split("decision_type=")[1].split("\n")[0][1:]),
    "linear": put(is_linear="1"),
    "classes": put(num_class="2000000000"),
    "trees an iteration": put(num_tree_per_iteration="0"),
    "features": put(max_feature_idx="2000000000"),
    "an objective": put(objective="binary sigmoid:1\nnum_class=9"),
    "no number": put(leaf_value="one"),
    "a wrong size": re.sub(r"tree_sizes=\d+", "tree_sizes=9", TEXT),
    "a large size": re.sub(r"tree_sizes=\d+", "tree_sizes=999999999", TEXT),
    "twice": TEXT.replace("num_cat=0\n", "num_cat=0\nnum_cat=0\n", 1),
    "a file": setting("forcedsplits_filename", "passwd"),
    "data": setting("data", "x"),
    "machines": setting("num_machines", "3"),
    "a path": setting("metric", "/etc/passwd"),
    "pandas": TEXT.replace("pandas_categorical:null", "pandas_categorical:[[1]]"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_trees_are_refused(name):
    assert HOSTILE[name] != TEXT
    with pytest.raises(ModelError, match="the boosted trees are damaged"):
        Boosted.from_json(json.dumps({"members": [TEXT, HOSTILE[name]]})).check(N_FEATURES, 1)


@pytest.mark.parametrize(
    "more",
    [
        *({"members": members} for members in ([], TEXT, [3])),
        *({"n_outputs": n} for n in (0, -1, 2, 1.5)),
        {"shift": "x"},
    ],
)
def test_what_is_around_them_too(more):
    with pytest.raises(ModelError):
        Boosted.from_json(json.dumps({"members": [TEXT], **more})).check(N_FEATURES, 1)


LOADS = """
import sys, json, numpy as np, lightgbm
x = np.random.default_rng(0).normal(size=(20, 4))
for text in json.load(open(sys.argv[1])):
    trees = lightgbm.Booster(model_str=text)
    trees.predict(x, raw_score=True), trees.predict(x, pred_contrib=True)
print("all of them")
"""


def test_altered_trees_that_pass_do_no_harm(tmp_path):
    """Letters exchanged at random: what is not refused is loaded, in a process of its own."""
    random.seed(0)
    kept, n_refused = [put(leaf_value=TEXT.split("leaf_value=")[1].split("\n")[0])], 0
    for number in ("inf", "nan", "-inf", "1e999", "1e-999", "0000000000000000000000001"):
        for name in ("leaf_value", "threshold", "split_gain", "shrinkage", "internal_value"):
            row = TEXT.split(f"\n{name}=")[1].split("\n")[0].split()
            kept.append(put(**{name: " ".join([number, *row[1:]])}))
    for text in kept:
        check_trees(text, N_FEATURES, 1)
    for k in range(600):
        letters = list(TEXT)
        for _ in range(1 + k % 3):
            letters[random.randrange(len(letters))] = random.choice("0123456789-=. \nei")
        try:
            check_trees("".join(letters), N_FEATURES, 1)
        except ModelError:
            n_refused += 1
        else:
            kept.append("".join(letters))
    assert n_refused > 100
    assert len(kept) > 100
    (tmp_path / "texts").write_text(json.dumps(kept))
    command = [sys.executable, "-c", LOADS, str(tmp_path / "texts")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("all of them\n"), done.stderr
