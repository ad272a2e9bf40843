"""A quick recorder of the tensor operations of a function, and traced graphs as functions.

A quick recorder of the tensor operations of a function.

torch's ``make_fx`` works for every function, but it is slow: it also runs each operation on fake tensors, and it
follows symbols and known constants. :func:`record` runs the function once on real tensors and writes down the
operations. The graph is the same. Where it could differ, :class:`NotRecordable` is raised, and the caller uses
``make_fx``.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from calibrant.base.classes import one_hot


class ValueForm(NamedTuple):
    """The form of a node's value, ``node.meta["val"]``. ``make_fx`` gives a fake tensor instead."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


def shape(node: fx.Node) -> torch.Size:
    """The shape of a node's value."""
    return node.meta["val"].shape


def dtype(node: fx.Node) -> torch.dtype:
    """The precision of a node's value."""
    return node.meta["val"].dtype


def same_form(a: fx.Node, b: fx.Node) -> bool:
    """Whether two values have the same shape and precision."""
    return shape(a) == shape(b) and dtype(a) == dtype(b)


def set_form(node: fx.Node, size: Sequence[int], like: fx.Node) -> None:
    """Set the form of a new node. Its value is not a constant, so its device is unknown."""
    node.meta = {"val": ValueForm(torch.Size(size), dtype(like), torch.device("meta"))}


class Recording(fx.GraphModule):
    """A graph and its constants, without code of its own. :func:`as_function` makes a function of it.

    A ``GraphModule`` writes and compiles its code whenever it gets a graph. Most graphs here are steps on the way to
    another graph, so this would take a third of the time of tracing.
    """

    def recompile(self) -> Any:
        """Do nothing."""


def is_pure(graph: fx.Graph) -> bool:
    """Whether no operation of a graph writes into its inputs."""
    return not any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in graph.nodes)


def has_shapes_by_value(graph: fx.Graph) -> bool:
    """Whether the shape of a result depends on values, as with a boolean mask. A replay would use the first shapes."""
    return any(map(_has_shape_by_value, graph.nodes))


def _has_shape_by_value(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.dynamic_output_shape not in target.tags:
        return False
    if target is not torch.ops.aten.index.Tensor:
        return True
    indices: Any = node.args[1]
    return any(index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8) for index in indices)


def split(module: fx.GraphModule, late: int, early_outputs: int) -> tuple[Recording, Recording, Recording]:
    """Cut a graph at its last ``late`` inputs.

    Returns
    -------
    early, rest, second : Recording
        ``early`` computes everything that does not depend on the late inputs. It returns the first ``early_outputs``
        outputs, followed by the values that ``rest`` needs. ``rest`` takes these values and the late inputs and
        returns the other outputs. ``second`` is a copy of ``rest`` that returns only its second output.
    """
    graph = module.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    outputs = next(n for n in graph.nodes if n.op == "output").args[0]
    dependent = set(placeholders[len(placeholders) - late :])
    for node in graph.nodes:
        if any(a in dependent for a in node.all_input_nodes):
            dependent.add(node)
    last = outputs[early_outputs:]
    needed = {a for n in dependent if n.op != "output" for a in n.all_input_nodes} | set(last)
    saved = [n for n in graph.nodes if n in needed and n not in dependent and n.op != "get_attr"]

    early = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node not in dependent and node.op != "output":
            env[node] = early.node_copy(node, env.__getitem__)
    early.output((*(_look_up(env, o) for o in outputs[:early_outputs]), *(env[n] for n in saved)))
    early.eliminate_dead_code()

    def build(chosen: Sequence[fx.Node]) -> Recording:
        rest = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for position, node in enumerate(saved):
            env[node] = rest.placeholder(f"saved_{position}")
        for node in graph.nodes:
            if node.op != "output" and (node in dependent or node.op == "get_attr"):
                env[node] = rest.node_copy(node, env.__getitem__)
        rest.output(tuple(_look_up(env, o) for o in chosen))
        rest.eliminate_dead_code()
        return Recording(module, rest)

    return Recording(module, early), build(last), build(last[1:2])


_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)")


def as_function(module: fx.GraphModule) -> Callable[..., Any]:
    """The graph as a plain function that calls torch's operators directly.

    It runs the same code as the module, but skips ``nn.Module`` and the Python layer of each operator. Both take a
    noticeable part of the time of small networks.
    """
    code = module.graph.python_code("self")
    names = dict(code.globals)

    def shorten(match: re.Match[str]) -> str:
        space, name, overload = match.groups()
        operator = getattr(getattr(getattr(torch.ops, space), name), overload)
        short = f"_{space}_{name}_{overload}"
        names[short] = getattr(operator, "_op", operator)
        return short

    exec(compile(_OPERATOR.sub(shorten, code.src), "<traced graph>", "exec"), names)
    return functools.partial(names["forward"], module)


def _look_up(env: dict[fx.Node, fx.Node], value: Any) -> Any:
    return env[value] if isinstance(value, fx.Node) else value


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
