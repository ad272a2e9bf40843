"""A small writer for ONNX graphs: nodes in the order of computation, constants by value."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant._version import __version__
from calibrant.base.atomic_write import whole_file

OPSETS = {"": 17, "ai.onnx.ml": 3}
"""The operator sets that are used; old enough for most runtimes."""
_IR = 8


def require() -> Any:
    """Import the package onnx; raise an error with advice if it is not installed."""
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise ImportError(
            "Writing ONNX needs the package onnx. Install it with: pip install 'calibrant[onnx]'."
        ) from None
    return onnx


class Graph:
    """A graph that is built node by node; values are identified by their names."""

    def __init__(self) -> None:
        self.onnx = require()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        """Add a constant of a given type."""
        name = f"c{len(self.constants)}"
        array = np.ascontiguousarray(np.asarray(value, dtype=dtype))
        self.constants.append(self.onnx.numpy_helper.from_array(array.reshape(np.shape(value)), name))
        return name

    def texts(self, values: Sequence[str]) -> str:
        """Add a constant vector of strings."""
        name = f"c{len(self.constants)}"
        texts = [value.encode() for value in values]
        self.constants.append(self.onnx.helper.make_tensor(name, self.onnx.TensorProto.STRING, [len(texts)], texts))
        return name

    def add(self, operator: str, *inputs: str | float | np.ndarray, domain: str = "", **attributes: Any) -> str:
        """Add an operator and return its result; inputs that are numbers or arrays become float64 constants."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        result = f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, names, [result], domain=domain, **attributes))
        return result

    def cast(self, value: str, dtype: Any) -> str:
        """Cast a value to another type."""
        return self.add("Cast", value, to=self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def rows(self, row: np.ndarray, like: str) -> str:
        """Repeat a row for each row of another value."""
        count = self.add("Slice", self.add("Shape", like), *(self.constant([k], np.int64) for k in (0, 1)))
        shape = self.add("Concat", count, self.constant([len(row)], np.int64), axis=0)
        return self.add("Expand", row, shape)

    def write(
        self,
        path: str | os.PathLike[str],
        inputs: Mapping[str, tuple[Any, list[Any]]],
        outputs: Mapping[str, tuple[str, Any, list[Any]]],
        notes: Mapping[str, str],
    ) -> None:
        """Write the model: inputs by name with type and shape, outputs with their values, and notes."""
        helper = self.onnx.helper
        for name, (value, *_) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [value], [name]))
        graph = helper.make_graph(
            self.nodes,
            "calibrant",
            [helper.make_tensor_value_info(name, _kind(self.onnx, k), shape) for name, (k, shape) in inputs.items()],
            [helper.make_tensor_value_info(n, _kind(self.onnx, k), shape) for n, (_, k, shape) in outputs.items()],
            self.constants,
        )
        sets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        model = helper.make_model(graph, opset_imports=sets, producer_name="calibrant", producer_version=__version__)
        model.ir_version = _IR
        helper.set_model_props(model, dict(notes))
        self.onnx.checker.check_model(model)
        with whole_file(path) as place:
            place.write_bytes(model.SerializeToString())


def _kind(onnx: Any, dtype: Any) -> int:
    kind: int = onnx.TensorProto.STRING if dtype is str else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return kind
