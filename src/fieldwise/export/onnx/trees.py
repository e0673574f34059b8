"""Boosted trees in a graph of ONNX, from LightGBM's text of them.

Features and thresholds are compared as float64, which is how LightGBM compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...boosted import Boosted
from ...errors import ModelError
from .graph import Graph

__all__ = ["tree_scores"]

CATEGORICAL, DEFAULT_LEFT = 1, 2  # bits of a decision
NO_MISSING, NAN_MISSING = 0, 2  # values of the third and fourth bit; 1: zero means missing


@dataclass(frozen=True)
class _Tree:
    """Splits (s,) and leaves (s + 1,); a child below 0 is the leaf -1 - child."""

    feature: np.ndarray
    threshold: np.ndarray
    decision: np.ndarray
    left: np.ndarray
    right: np.ndarray
    leaf: np.ndarray

    @property
    def nan_left(self) -> np.ndarray:
        """Whether NaN goes left: as the decision says, or like 0 if it knows no missing values."""
        kind = (self.decision >> 2) & 3
        is_known = np.isin(kind, (NO_MISSING, NAN_MISSING))
        if (self.decision & CATEGORICAL).any() or not is_known.all():
            raise ModelError(
                "the boosted trees have decisions that ONNX cannot carry: categories, or zeros "
                "that mean missing"
            )
        default = (self.decision & DEFAULT_LEFT) > 0
        return np.where(kind == NAN_MISSING, default, self.threshold >= 0)


def _trees(text: str) -> Iterator[_Tree]:
    """The trees of a member, in their order."""
    for block in text.split("\nTree=")[1:]:
        said = dict(
            line.split("=", 1) for line in block.split("\n\n")[0].splitlines()[1:] if "=" in line
        )

        def read(name: str, dtype: type, said: dict[str, str] = said) -> np.ndarray:
            return np.array(said.get(name, "").split(), dtype)

        try:
            yield _Tree(
                read("split_feature", np.int64),
                read("threshold", np.float64),
                read("decision_type", np.int64),
                read("left_child", np.int64),
                read("right_child", np.int64),
                read("leaf_value", np.float64),
            )
        except ValueError as error:
            raise ModelError(f"the boosted trees are damaged: {error}") from error


def tree_scores(graph: Graph, features: str, boosted: Boosted) -> str:
    """The trees' scores (n, K) of features (n, F)."""
    trees = [(k, tree) for member in boosted.members for k, tree in enumerate(_trees(member))]
    modes: list[str] = []
    columns: dict[str, list[np.ndarray]] = {}
    for number, (k, tree) in enumerate(trees):
        n_splits, n_leaves = len(tree.feature), len(tree.leaf)
        modes += ["BRANCH_LEQ"] * n_splits + ["LEAF"] * n_leaves
        none = np.zeros(n_leaves, np.int64)
        leaves = np.arange(n_splits, n_splits + n_leaves)  # nodes are the splits, then the leaves
        for name, values in {
            "nodes_treeids": np.full(n_splits + n_leaves, number),
            "nodes_nodeids": np.arange(n_splits + n_leaves),
            "nodes_featureids": np.append(tree.feature, none),
            "nodes_truenodeids": np.append(_nodes(tree.left, n_splits), none),
            "nodes_falsenodeids": np.append(_nodes(tree.right, n_splits), none),
            "nodes_missing_value_tracks_true": np.append(tree.nan_left.astype(np.int64), none),
            "nodes_values": np.append(tree.threshold, none),
            "target_treeids": np.full(n_leaves, number),
            "target_nodeids": leaves,
            "target_ids": np.full(n_leaves, k % boosted.n_outputs),
            "target_weights": tree.leaf / len(boosted.members),
        }.items():
            columns.setdefault(name, []).append(values)
    about: dict[str, Any] = {}
    for name, parts in columns.items():
        values = np.concatenate(parts)
        if values.dtype == np.float64:
            about[f"{name}_as_tensor"] = graph.tensor(values, name)
        else:
            about[name] = values.tolist()
    shift = graph.tensor(np.full(boosted.n_outputs, boosted.shift), "base_values")
    wide = graph("Cast", features, to=11)  # float64
    return graph(
        "TreeEnsembleRegressor",
        wide,
        nodes_modes=modes,
        n_targets=boosted.n_outputs,
        base_values_as_tensor=shift,
        **about,
    )


def _nodes(children: np.ndarray, n_splits: int) -> np.ndarray:
    """The node of every child; a child below 0 is a leaf."""
    return np.where(children >= 0, children, n_splits - 1 - children)
