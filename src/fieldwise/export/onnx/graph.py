"""A builder of ONNX graphs: every call adds a node and returns the name of its result.

    graph = Graph(columns)
    x = graph.input("price", np.float64, ["N", 1])
    score = graph("Add", x, np.array([1.0]), name="score")

Arrays among a node's inputs become constants of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import __version__
from ...errors import MissingExtra, ModelError

__all__ = ["LARGEST", "Graph", "need_onnx"]

LARGEST = (1 << 31) - (1 << 20)  # bytes of a file, less a margin for what is not counted
OPSETS = {"": 20, "ai.onnx.ml": 4}
IR_VERSION = 9  # the first with these operator sets
ML = {"LabelEncoder", "TreeEnsembleRegressor"}


def need_onnx() -> Any:
    """The package onnx; call it early, so that a missing package is found before the work."""
    try:
        import onnx
    except ImportError:
        raise MissingExtra("onnx", "onnx") from None
    return onnx


class Graph:
    """A graph; `taken` are names that nothing inside may have: those of the inputs."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._onnx = need_onnx()
        self._taken = set(taken)
        self._model = self._onnx.ModelProto(ir_version=IR_VERSION, producer_name="fieldwise")
        self._graph = self._model.graph  # filled in place: a table is large, and copies add up
        self._known: dict[tuple[Any, ...], str] = {}  # constants that are there already
        self._size = 0

    def __call__(self, op: str, *inputs: str | np.ndarray, name: str = "", **about: Any) -> str:
        """Add a node with one result."""
        return self.several(op, *inputs, n=1, name=name, **about)[0]

    def several(
        self, op: str, *inputs: str | np.ndarray, n: int, name: str = "", **about: Any
    ) -> list[str]:
        """Add a node with n results."""
        given = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        made = [self.free(name or op.lower()) for _ in range(n)]
        domain = "ai.onnx.ml" if op in ML else ""
        node = self._onnx.helper.make_node(op, given, made, name=made[0], domain=domain, **about)
        self._graph.node.append(node)
        return made

    def joined(self, parts: Sequence[str]) -> str:
        """Concatenate parts along the second axis."""
        return parts[0] if len(parts) == 1 else self("Concat", *parts, axis=1)

    def free(self, name: str) -> str:
        """This name, or a similar one that is not in use."""
        found, k = name, 1
        while found in self._taken:
            found, k = f"{name}_{k}", k + 1
        self._taken.add(found)
        return found

    def constant(self, value: np.ndarray, name: str = "constant") -> str:
        """Add a constant; equal small ones are stored once."""
        key = (value.dtype.str, value.shape, repr(value.tolist())) if value.size < 64 else None
        if key is not None and key in self._known:
            return self._known[key]
        made = self.free(name)
        self._graph.initializer.append(self.tensor(value, made))
        if key is not None:
            self._known[key] = made
        return made

    def lookup(
        self, x: str, keys: Sequence[str] | np.ndarray, values: np.ndarray, default: int
    ) -> str:
        """The value (int64) of every x among these keys, which are texts or numbers."""
        if isinstance(keys, np.ndarray):
            tensor = self.tensor(keys, "keys")
        else:
            texts = [key.encode() for key in keys]
            kind = self._onnx.TensorProto.STRING
            tensor = self._onnx.helper.make_tensor("keys", kind, [len(texts)], texts)
            self._count(sum(map(len, texts)) + 4 * len(texts))
        found = self.tensor(values.astype(np.int64), "values")
        return self(
            "LabelEncoder", x, keys_tensor=tensor, values_tensor=found, default_int64=default
        )

    def tensor(self, value: np.ndarray, name: str) -> Any:
        """An array as an ONNX tensor."""
        self._count(value.nbytes)
        return self._onnx.numpy_helper.from_array(value, name)

    def _count(self, n_bytes: int) -> None:
        self.check_room(n_bytes)
        self._size += n_bytes

    def check_room(self, n_bytes: int) -> None:
        """Raise if so many more bytes would be too many for a file."""
        if self._size + n_bytes > LARGEST:
            raise ModelError(
                f"the model takes more than {LARGEST / 1e9:.1f} GB as ONNX, the most that one file "
                "can have; compress it first, or train it with a smaller rank or a higher min_count"
            )

    def input(self, name: str, kind: type, shape: Sequence[str | int], about: str) -> str:
        """A column of the table, under its own name; `kind` is str or a type of NumPy."""
        self._graph.input.append(self._info(name, kind, shape, about))
        return name

    def output(self, made: str, shape: Sequence[str | int], about: str) -> None:
        """Make a result, float32, an output of the graph."""
        self._graph.output.append(self._info(made, np.float32, shape, about))

    def _info(self, name: str, kind: type, shape: Sequence[str | int], about: str) -> Any:
        text = self._onnx.TensorProto.STRING
        dtype = text if kind is str else self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return self._onnx.helper.make_tensor_value_info(name, dtype, list(shape), about)

    def finished(self, about: str, metadata: Mapping[str, str]) -> bytes:
        """The content of the file."""
        helper = self._onnx.helper
        self._graph.name = "fieldwise"
        self._model.producer_version = __version__
        self._model.doc_string = about
        self._model.opset_import.extend(helper.make_opsetid(k, v) for k, v in OPSETS.items())
        helper.set_model_props(self._model, dict(metadata))
        return self._model.SerializeToString()
