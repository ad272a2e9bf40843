"""Simplifications of traced graphs, for overhead that autograd's generic formulas and ``vmap`` leave.

All passes keep values exactly, or up to the rounding of one fused multiply-add. They know nothing about the model or
the loss. They assume graphs without mutation, where memory layouts may change: ``view`` becomes ``reshape``, and
graphs that ask for a layout (``as_strided``) are not changed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx

from calibrant.bilevel.compiled.recorder import ValueForm, dtype, same_form, set_form, shape

aten = torch.ops.aten
_COPIES = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.clone.default}
_VIEWS = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
_TRANSPOSES = {aten.t.default, aten.transpose.int}
_PRODUCTS = {aten.mm.default: aten.addmm.default, aten.bmm.default: aten.baddbmm.default}
_ZEROS = {aten.zeros_like.default, aten.zeros.default, aten.new_zeros.default}
_NUMBERS = {aten.scalar_tensor.default, aten._to_copy.default}


def simplify(module: fx.GraphModule) -> fx.GraphModule:
    """Drop operations without effect, merge repeated ones, remove transposes, and fuse products with sums."""
    graph = module.graph
    graph.eliminate_dead_code()
    if not any(n.target == aten.as_strided.default for n in graph.nodes):
        _drop_no_ops(graph)
        _hoist_transposes(graph)
        graph.eliminate_dead_code()
        _turn_products(graph)
        _drop_no_ops(graph)
        _merge_repeats(graph)
        _fold_constants(module)
        _fuse_additions(graph)
    graph.eliminate_dead_code()
    module.recompile()
    return module


def _drop_no_ops(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.target in _VIEWS:
            node.target = aten.reshape.default
            source = node.args[0]
            while isinstance(source, fx.Node) and source.target in _VIEWS:
                source = source.args[0]
            node.args = (source, list(shape(node)))
        same = _equal_to(node)
        if same is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _equal_to(node: fx.Node) -> fx.Node | None:
    """An argument of this node with the same value, if there is one."""
    if node.target == aten.cat.default and len(node.args[0]) == 1:  # type: ignore[arg-type]
        return node.args[0][0]  # type: ignore[index, return-value]
    if node.target is operator.getitem:
        parts = node.args[0]
        if parts.target == aten.split_with_sizes.default and len(parts.args[1]) == 1:  # type: ignore[union-attr, arg-type]
            return parts.args[0]  # type: ignore[union-attr, return-value]
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    first = node.args[0]
    if node.target in _COPIES:
        return first
    if node.target in (aten.reshape.default, aten.expand.default) and shape(node) == shape(first):
        return first
    if node.target in (aten.slice.Tensor, aten.slice_backward.default) and shape(node) == shape(first):
        return first  # a slice of everything, or its adjoint: only a step of 1 keeps the shape
    if node.target == aten.mul.Scalar and node.args[1] == 1 and same_form(node, first):
        return first
    if node.target in _TRANSPOSES and first.target in _TRANSPOSES and _swapped(node) == _swapped(first):
        return first.args[0]  # type: ignore[return-value]
    if node.target == aten.add.Tensor and not node.kwargs:
        for zero, other in (node.args, node.args[::-1]):
            if isinstance(zero, fx.Node) and zero.target in _ZEROS and isinstance(other, fx.Node):
                return other if same_form(node, other) else None
    return None


def _hoist_transposes(graph: fx.Graph) -> None:
    """Write ``aᵀ + bᵀ`` as ``(a + b)ᵀ``. The one transpose often cancels with another one."""
    for node in list(graph.nodes):
        if node.target != aten.add.Tensor or node.kwargs or not all(isinstance(a, fx.Node) for a in node.args):
            continue
        left, right = node.args
        if left.target in _TRANSPOSES and right.target in _TRANSPOSES and same_form(left, right):
            if _swapped(left) != _swapped(right):
                continue
            inner = left.args[0]
            with graph.inserting_before(node):
                total = graph.call_function(aten.add.Tensor, (inner, right.args[0]))
                set_form(total, shape(inner), node)
                turned = graph.call_function(aten.transpose.int, (total, *sorted(_swapped(left))))
                set_form(turned, shape(node), node)
            node.replace_all_uses_with(turned)
            graph.erase_node(node)


def _turn_products(graph: fx.Graph) -> None:
    """Write ``(a @ b)ᵀ`` as ``bᵀ @ aᵀ`` where it is added to something, so that the sum can be fused with it."""
    for node in list(graph.nodes):
        if node.target not in _TRANSPOSES or not any(user.target == aten.add.Tensor for user in node.users):
            continue
        product = node.args[0]
        rank = len(shape(node))
        if product.target in _PRODUCTS and len(product.users) == 1 and _swapped(node) == {rank - 2, rank - 1}:
            with graph.inserting_before(node):
                right, left = (_transposed(graph, factor) for factor in product.args)
                turned = graph.call_function(product.target, (left, right))
            set_form(turned, shape(node), node)
            node.replace_all_uses_with(turned)
            graph.erase_node(node)
            graph.erase_node(product)


def _transposed(graph: fx.Graph, node: fx.Node) -> fx.Node:
    size = list(shape(node))
    last = len(size) - 1
    result = graph.call_function(aten.transpose.int, (node, last - 1, last))
    size[-2:] = size[:-3:-1]
    set_form(result, size, node)
    return result


def _merge_repeats(graph: fx.Graph) -> None:
    """Compute equal expressions once. Two random draws never count as equal."""
    seen: dict[object, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or _is_random(node.target):
            continue
        key = (node.target, _freeze(node.args), _freeze(node.kwargs))
        if key in seen:
            node.replace_all_uses_with(seen[key])
            graph.erase_node(node)
        else:
            seen[key] = node


def _fold_constants(module: fx.GraphModule) -> None:
    """Compute expressions that depend on no input now: ones and counts in averages and gradients."""
    graph, constants = module.graph, dict[fx.Node, torch.Tensor]()
    for node in list(graph.nodes):
        value = _constant_value(node, constants)
        if value is not None:
            constants[node] = value
    for position, (node, value) in enumerate(constants.items()):
        if all(user in constants for user in node.users):
            continue  # only other constants need it
        name = f"_constant{position}"
        module.register_buffer(name, value, persistent=False)
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        constant.meta = dict(node.meta)
        node.replace_all_uses_with(constant)


_FILLS = {
    aten.ones_like.default: torch.ones,
    aten.zeros_like.default: torch.zeros,
    aten.new_zeros.default: torch.zeros,
    aten.new_ones.default: torch.ones,
}


def _constant_value(node: fx.Node, constants: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    if node.op != "call_function" or _is_random(node.target) or not isinstance(node.target, torch._ops.OpOverload):
        return None
    form = node.meta.get("val")
    if not isinstance(form, torch.Tensor | ValueForm) or form.device.type == "meta":
        return None
    if node.target in _FILLS:
        return _FILLS[node.target](form.shape, dtype=form.dtype, device=form.device)
    if node.target in _NUMBERS and not node.all_input_nodes:  # a Python number as a tensor
        return node.target(*node.args, **node.kwargs)
    if node.all_input_nodes and all(n in constants for n in node.all_input_nodes):
        arguments, keywords = fx.map_arg((node.args, node.kwargs), constants.__getitem__)
        return node.target(*arguments, **keywords)
    return None


def _fuse_additions(graph: fx.Graph) -> None:
    """Write ``x + a @ b`` as one call where nothing else uses the product."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target != aten.add.Tensor or node.kwargs or not all(isinstance(a, fx.Node) for a in node.args):
            continue
        # Fuse the later product, because the earlier operand already exists and can accumulate the sum.
        first, second = sorted(node.args, key=order.__getitem__)
        for product, other in ((second, first), (first, second)):
            alone = len(product.users) == 1 and product is not other
            if product.target in _PRODUCTS and alone and _can_hold(node, product, other):
                with graph.inserting_before(node):
                    fused = graph.call_function(_PRODUCTS[product.target], (other, *product.args))
                set_form(fused, shape(node), node)
                order[fused] = order[node]
                node.replace_all_uses_with(fused)
                graph.erase_node(node)
                graph.erase_node(product)
                break


def _can_hold(node: fx.Node, product: fx.Node, other: fx.Node) -> bool:
    return same_form(node, product) and dtype(other) == dtype(node) and 0 < len(shape(other)) <= len(shape(node))


def _swapped(node: fx.Node) -> set[int]:
    """The two dimensions that a transpose exchanges."""
    rank = len(shape(node))
    return {0, 1} if node.target == aten.t.default else {int(d) % rank for d in node.args[1:3]}  # type: ignore[arg-type]


def _is_random(target: Callable | str) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _freeze(value: object) -> object:
    """A hashable form of a node's arguments."""
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, dict):
        return tuple(sorted((k, _freeze(v)) for k, v in value.items()))
    return (type(value).__name__, value)  # 1, 1.0 and True are different arguments
