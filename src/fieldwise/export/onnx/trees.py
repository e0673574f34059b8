"""Boosted trees in a graph of ONNX, from the text that LightGBM writes them down as.

Features and thresholds are compared as float64, which is how LightGBM compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...boosted import Boosted
from ...errors import ModelError
from .graph import Graph

__all__ = ["tree_scores"]

CATEGORICAL, DEFAULT_LEFT = 1, 2  # bits of a decision
NO_MISSING, NAN_MISSING = 0, 2  # what its third and fourth bit say: zero is missing is 1


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
        """Where NaN goes: where the decision says, or with 0 where it knows no missing values."""
        kind = (self.decision >> 2) & 3
        if (self.decision & CATEGORICAL).any() or not np.isin(
            kind, (NO_MISSING, NAN_MISSING)
        ).all():
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
    nodes: dict[str, list[np.ndarray]] = {}
    leaves: dict[str, list[np.ndarray]] = {}
    modes: list[str] = []
    number = 0
    for member in boosted.members:
        for k, tree in enumerate(_trees(member)):
            s, n = len(tree.feature), len(tree.feature) + len(tree.leaf)
            none = np.zeros(n - s, np.int64)
            each = {
                "treeids": np.full(n, number),
                "nodeids": np.arange(n),
                "featureids": np.append(tree.feature, none),
                "truenodeids": np.append(_children(tree.left, s), none),
                "falsenodeids": np.append(_children(tree.right, s), none),
                "missing_value_tracks_true": np.append(tree.nan_left.astype(np.int64), none),
                "values": np.append(tree.threshold, none.astype(np.float64)),
            }
            modes += ["BRANCH_LEQ"] * s + ["LEAF"] * (n - s)
            ends = {
                "treeids": np.full(n - s, number),
                "nodeids": np.arange(s, n),
                "ids": np.full(n - s, k % boosted.n_outputs),
                "weights": tree.leaf / len(boosted.members),
            }
            for made, these in ((nodes, each), (leaves, ends)):
                for name, values in these.items():
                    made.setdefault(name, []).append(values)
            number += 1
    splits = {f"nodes_{name}": np.concatenate(values) for name, values in nodes.items()}
    ends = {f"target_{name}": np.concatenate(values) for name, values in leaves.items()}
    tensors = {
        "nodes_values_as_tensor": splits.pop("nodes_values"),
        "target_weights_as_tensor": ends.pop("target_weights"),
        "base_values_as_tensor": np.full(boosted.n_outputs, boosted.shift),
    }
    return graph(
        "TreeEnsembleRegressor",
        graph("Cast", features, to=11),  # float64
        nodes_modes=modes,
        n_targets=boosted.n_outputs,
        **{name: values.tolist() for name, values in {**splits, **ends}.items()},
        **{name: graph.tensor(values, name) for name, values in tensors.items()},
    )


def _children(child: np.ndarray, n_splits: int) -> np.ndarray:
    """Nodes are a tree's splits, then its leaves."""
    return np.where(child >= 0, child, n_splits - 1 - child)
