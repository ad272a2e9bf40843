"""A quick recorder of the tensor operations of a function.

torch's ``make_fx`` works for every function, but it is slow: it also runs each operation on fake tensors, and it
follows symbols and known constants. :func:`record` runs the function once on real tensors and writes down the
operations. The graph is the same. Where it could differ, :class:`NotRecordable` is raised, and the caller uses
``make_fx``.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from calibrant._classes import one_hot
from calibrant.bilevel.tracing.forms import ValueForm
from calibrant.bilevel.tracing.graph_functions import Recording

aten = torch.ops.aten
_PLAIN = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments that are written into the graph as they are."""


class NotRecordable(Exception):
    """The function does something that only ``make_fx`` records or refuses properly; no user sees this error."""


def record(fn: Callable[..., Any], example: list[Tensor]) -> Recording:
    """Return the operations that ``fn(*example)`` performs below autograd and ``vmap``, as a graph."""
    recorder = _Recorder()
    for position, tensor in enumerate(example):
        recorder.place(tensor, recorder.graph.placeholder(f"arg{position}"))
    with _without_autocast_cache(), recorder:
        outputs = fn(*example)
    recorder.graph.output(recorder.argument(outputs))
    return Recording(recorder.root, recorder.graph)


class OneHotByComparison(TorchFunctionMode):
    """Replaces ``one_hot`` by a comparison, because torch's function reads the labels to check them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.one_hot:
            return _one_hot(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:  # the number of columns depends on the labels
        return nn.functional.one_hot(tensor, num_classes)
    return one_hot(tensor, num_classes, torch.int64)


class _Recorder(TorchDispatchMode):
    """Adds a node to ``graph`` for every operation, and remembers which node made which tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.graph, self.root = fx.Graph(), nn.Module()
        self._nodes: MutableMapping[Tensor, fx.Node] = WeakTensorKeyDictionary()
        self._kept: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in func.tags:
            raise NotRecordable
        if func is aten.lift_fresh.default:  # the copy keeps later changes in place from the constant
            func = aten.lift_fresh_copy.default
        node = self.graph.call_function(func, self.argument(args), {k: self.argument(v) for k, v in kwargs.items()})
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            self.place(result, node)
        elif isinstance(result, tuple | list) and all(part is None or isinstance(part, Tensor) for part in result):
            for position, part in enumerate(result):
                if part is not None:
                    self.place(part, self.graph.call_function(operator.getitem, (node, position)))
        else:
            raise NotRecordable
        return result

    def place(self, tensor: Tensor, node: fx.Node) -> None:
        """Remember that ``node`` made this tensor."""
        if type(tensor) is not Tensor:
            raise NotRecordable
        node.meta["val"] = _form(tensor)
        self._nodes[tensor] = node

    def argument(self, value: Any) -> Any:
        """An argument of an operation, with nodes instead of tensors."""
        if isinstance(value, Tensor):
            node = self._nodes.get(value)
            return self._constant(value) if node is None else node
        if isinstance(value, list | tuple):
            return tuple(map(self.argument, value)) if isinstance(value, tuple) else list(map(self.argument, value))
        if not isinstance(value, _PLAIN):
            raise NotRecordable
        return value

    def _constant(self, tensor: Tensor) -> fx.Node:
        """A tensor that the function did not get as an argument: the graph reads it at every replay."""
        if type(tensor) not in (Tensor, nn.Parameter):
            raise NotRecordable
        name = f"_tensor_constant{len(self._kept)}"
        self._kept.append(tensor)
        setattr(self.root, name, tensor)
        node = self.graph.get_attr(name)
        node.meta["val"] = _form(tensor)
        self._nodes[tensor] = node
        return node


def _form(tensor: Tensor) -> ValueForm:
    return ValueForm(tensor.shape, tensor.dtype, tensor.device)


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Run without autocast's cache, whose tensors the recorder would take for constants."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)
