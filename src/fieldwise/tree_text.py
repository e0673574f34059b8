"""Check LightGBM's text of trees, as untrusted input, before LightGBM reads it.

Its parser trusts its input: an index out of range, a cycle of nodes or a malformed number crashes
the process, which cannot be caught. So a text is compared with what LightGBM writes for us, line by
line, and refused where it differs: no categorical splits, no linear leaves, nothing that names a
file or a machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .errors import ModelError

__all__ = ["check_trees"]

MOST_LEAVES = 4096  # of a tree
DEEPEST = 256  # contributions take time and memory quadratic in depth
NUMBER = r"-?(?:inf|nan|\d{1,25}+(?:\.\d{1,25}+)?+(?:e[+-]?\d{1,3}+)?+)"
COUNT = r"\d{1,9}+"


def _row(item: str) -> re.Pattern[str]:
    """A pattern of items with a space between them."""
    return re.compile(rf"(?:{item}(?: {item})*+)?+")


COUNTS, WHOLE, NUMBERS = _row(COUNT), _row(rf"-?{COUNT}"), _row(NUMBER)
OBJECTIVE = re.compile(
    r"binary sigmoid:1|multiclass num_class:\d+|regression|regression_l1|huber|poisson"
    r"|cross_entropy"
)
HEAD = {
    "version": re.compile("v[34]"),
    "num_class": re.compile(COUNT),
    "num_tree_per_iteration": re.compile(COUNT),
    "label_index": re.compile("0"),
    "max_feature_idx": re.compile(COUNT),
    "objective": OBJECTIVE,
    "feature_names": _row(r"\w{1,100}+"),
    "feature_infos": _row(rf"(?:none|\[{NUMBER}:{NUMBER}\])"),
    "tree_sizes": COUNTS,
}
# What a tree has for every leaf, and for every split.
OF_LEAVES = {"leaf_value": NUMBERS, "leaf_weight": NUMBERS, "leaf_count": COUNTS}
OF_SPLITS = {
    "split_feature": COUNTS,
    "split_gain": NUMBERS,
    "threshold": NUMBERS,
    "decision_type": _row(r"(?:0|2|4|6|8|10)"),  # the lowest bit means a categorical split
    "left_child": WHOLE,
    "right_child": WHOLE,
    "internal_value": NUMBERS,
    "internal_weight": NUMBERS,
    "internal_count": COUNTS,
}
ONE = {
    "num_leaves": re.compile(COUNT),
    "num_cat": re.compile("0"),
    "is_linear": re.compile("0"),
    "shrinkage": re.compile(NUMBER),
}
IMPORTANCE = re.compile(rf"\w{{1,100}}+=(?:{NUMBER})")
PARAMETER = re.compile(rf"\[([a-z_0-9]{{1,50}}+): ({NUMBER}|[a-z_0-9,]{{0,100}}+)\]")
FIXED = {
    "boosting": "gbdt",
    "tree_learner": "serial",
    "device_type": "cpu",
    "num_machines": "1",
    "linear_tree": "0",
    **dict.fromkeys(("data", "valid", "machines", "parser_config_file"), ""),
}


def check_trees(text: str, n_features: int, n_outputs: int) -> None:
    """Raise unless a text is as LightGBM writes it, with so many features and outputs."""
    try:
        _check(text, n_features, n_outputs)
    except (ValueError, IndexError, KeyError) as error:
        raise ModelError(f"the boosted trees are damaged: {error}") from None


def _check(text: str, n_features: int, n_outputs: int) -> None:
    if type(text) is not str or not text.isascii():
        raise ValueError("they are not plain text")
    top, _, rest = text.partition("\n\n")
    first, *lines = top.split("\n")
    if first != "tree":
        raise ValueError("they do not begin as trees do")
    head = _read(lines, HEAD)
    _expect("features", int(head["max_feature_idx"]) + 1, n_features)
    for name in ("feature_names", "feature_infos"):
        _expect(name, len(head[name].split()), n_features)
    for name in ("num_class", "num_tree_per_iteration"):
        _expect(name, int(head[name]), n_outputs)
    sizes = [int(size) for size in head["tree_sizes"].split()]
    _expect("the number of trees", len(sizes) % n_outputs, 0)
    begin = 0
    for k, size in enumerate(sizes):
        name, _, tree = rest[begin : begin + size].partition("\n")
        if name != f"Tree={k}" or not tree.endswith("\n\n\n"):
            raise ValueError(f"tree {k} is not where it should be")
        _check_tree(tree[:-3].split("\n"), k, n_features)
        begin += size
    _check_end(rest[begin:], n_outputs)


def _read(lines: list[str], meant: dict[str, re.Pattern[str]]) -> dict[str, str]:
    """Lines to values by name: every name of `meant` once, each value fitting its pattern."""
    found = {}
    for line in lines:
        name, _, value = line.partition("=")
        if name in found or name not in meant or not meant[name].fullmatch(value):
            raise ValueError(f"{line[:60]!r} is unexpected")
        found[name] = value
    missing = meant.keys() - found.keys()
    if missing:
        raise ValueError(f"{min(missing)} is missing")
    return found


TREE = {**ONE, **OF_LEAVES, **OF_SPLITS}


def _check_tree(lines: list[str], k: int, n_features: int) -> None:
    found = _read(lines, TREE)
    n = int(found["num_leaves"])
    if not 1 <= n <= MOST_LEAVES:
        raise ValueError(f"tree {k} has {n:,} leaves, and {MOST_LEAVES:,} is the most")
    for name in OF_SPLITS:
        _expect(f"tree {k}: {name}", len(found[name].split()), n - 1)
    for name in OF_LEAVES if n > 1 else ("leaf_value",):
        _expect(f"tree {k}: {name}", len(found[name].split()), n)
    if n > 1 and max(map(int, found["split_feature"].split())) >= n_features:
        raise ValueError(f"tree {k} splits a feature that is not there")
    _check_nodes(list(_children(found)), k, n)


def _children(found: dict[str, str]) -> Iterator[tuple[int, int]]:
    left, right = (map(int, found[name].split()) for name in ("left_child", "right_child"))
    return zip(left, right, strict=True)


def _check_nodes(children: list[tuple[int, int]], k: int, n_leaves: int) -> None:
    """Check that every node but the first is the child of an earlier one, and every leaf (~number)
    the child of a node, once each."""
    depth, waiting = {0: 1}, set(range(-n_leaves, 0)) if children else set()
    for node, pair in enumerate(children):
        for child in pair:
            if child < 0 and child in waiting:
                waiting.remove(child)
            elif node < child < len(children) and child not in depth and node in depth:
                depth[child] = depth[node] + 1
            else:
                raise ValueError(f"tree {k}: node {node} leads to {child}")
    if waiting:
        raise ValueError(f"tree {k} has leaves that no node leads to")
    if max(depth.values()) > DEEPEST:
        raise ValueError(f"tree {k} is deeper than {DEEPEST}")


def _check_end(text: str, n_outputs: int) -> None:
    """Check the counts of features, and the settings, which refitting trees uses."""
    begin, end = (
        "end of trees\n\nfeature_importances:\n",
        "\nend of parameters\n\npandas_categorical",
    )
    if not text.startswith(begin) or not text.rstrip("\n").endswith(f"{end}:null"):
        raise ValueError("they do not end as trees do")
    counts, _, rest = text[len(begin) :].partition("\nparameters:\n")
    for line in counts.split("\n"):
        if line and not IMPORTANCE.fullmatch(line):
            raise ValueError(f"{line[:60]!r} is unexpected")
    for line in rest.rpartition(end)[0].split("\n"):
        found = PARAMETER.fullmatch(line)
        if line and not found:
            raise ValueError(f"{line[:60]!r} is unexpected")
        if found:
            _check_setting(found[1], found[2], n_outputs)


def _check_setting(name: str, value: str, n_outputs: int) -> None:
    meant = "" if name.endswith("filename") else FIXED.get(name, value)
    if name == "num_class":
        meant = str(n_outputs)
    if value != meant:
        raise ValueError(f"{name} is {value!r}; it should be {meant!r}")


def _expect(what: str, found: int, meant: int) -> None:
    if found != meant:
        raise ValueError(f"{what}: {found:,} instead of {meant:,}")
