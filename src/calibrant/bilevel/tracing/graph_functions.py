"""Traced graphs as functions: cutting them in two, and running them as plain Python."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx


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
        found = getattr(getattr(getattr(torch.ops, space), name), overload)
        short = f"_{space}_{name}_{overload}"
        names[short] = getattr(found, "_op", found)
        return short

    exec(compile(_OPERATOR.sub(shorten, code.src), "<traced graph>", "exec"), names)
    return functools.partial(names["forward"], module)


def _look_up(env: dict[fx.Node, fx.Node], value: Any) -> Any:
    return env[value] if isinstance(value, fx.Node) else value
