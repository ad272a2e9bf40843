"""Pairs of operations that one operation replaces, with exactly the same result.

Second derivatives of activations contain many of them, such as ``a + (−b)`` and ``ones − a``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from calibrant.bilevel.tracing.forms import dtype, same_form, set_form, shape

aten = torch.ops.aten
_BROADCASTING = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor}


def shorten(module: fx.GraphModule, constants: str) -> None:
    """Replace pairs of operations in a graph. The names of constant attributes begin with ``constants``.

    This is the last pass, because without these operations other sums would be fused, and would be rounded differently.
    """
    for node in list(module.graph.nodes):
        if _skips_expansions(node):
            _skip_expansions(node, *_operands(node))
        found = _same_value(node, module, constants)
        if found is None and (call := _one_call(node, module, constants)) is not None:
            with module.graph.inserting_before(node):
                found = module.graph.call_function(*call)
            set_form(found, shape(node), node)
        if found is not None:
            node.replace_all_uses_with(found)
            module.graph.erase_node(node)


def _operands(node: fx.Node) -> list[fx.Node]:
    """The two operands of a sum, difference or product; none for other nodes, and for numbers as operands."""
    found = [a for a in node.args if isinstance(a, fx.Node)]
    return found if node.target in _BROADCASTING and not node.kwargs and len(found) == len(node.args) == 2 else []


def _skips_expansions(node: fx.Node) -> bool:
    return len(set(_operands(node))) == 2


def _skip_expansions(node: fx.Node, left: fx.Node, right: fx.Node) -> None:
    """Use ``x`` instead of ``x.expand(…)`` if the other operand already has the full shape."""
    for operand, other in ((left, right), (right, left)):
        if operand.target == aten.expand.default and shape(other) == shape(node):
            node.replace_input_with(operand, operand.all_input_nodes[0])
            return


def _same_value(node: fx.Node, module: fx.GraphModule, constants: str) -> fx.Node | None:
    """The node ``x`` for ``x**1`` and ``1·x``, which have the same value."""
    if node.target == aten.pow.Tensor_Scalar and node.args[1] == 1 and same_form(node, node.all_input_nodes[0]):
        return node.all_input_nodes[0]
    pair = _operands(node)
    if node.target == aten.mul.Tensor and pair:
        for one, other in (pair, pair[::-1]):
            if same_form(node, other) and _is_one(one, module, constants):
                return other
    return None


def _one_call(
    node: fx.Node, module: fx.GraphModule, constants: str
) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """One operation, with its arguments, for ``a + (−b)`` and ``1 − a``."""
    pair = _operands(node)
    if node.target == aten.add.Tensor and pair:
        for one, other in (pair, pair[::-1]):
            if one.target == aten.neg.default and dtype(one) == dtype(other):
                return aten.sub.Tensor, (other, one.args[0])
    if node.target == aten.sub.Tensor and pair and same_form(node, pair[1]) and _is_one(pair[0], module, constants):
        return aten.rsub.Scalar, (pair[1], 1)
    return None


def _is_one(node: fx.Node, module: fx.GraphModule, constants: str) -> bool:
    """Whether a node is a constant, a filled tensor or a power of 0 whose elements are all 1."""
    if node.op == "get_attr" and str(node.target).startswith(constants):
        return bool((getattr(module, str(node.target)) == 1).all())
    number = {aten.fill.Scalar: 1, aten.pow.Tensor_Scalar: 0}.get(node.target)  # type: ignore[call-overload]
    return number is not None and bool(node.args[1] == number)
