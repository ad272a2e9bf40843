"""Small passes over traced graphs: what autograd's generic formulas and ``vmap`` leave on the table.

All passes keep values exactly, or up to the rounding of one fused multiply-add; none knows which model or loss the
graph came from. They are written for graphs without mutation, where a value is its numbers and not its memory: layouts
may change, so ``view`` becomes ``reshape``, and graphs that ask for a layout (``as_strided``) are left alone.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_COPIES = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.clone.default}
_VIEWS = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
_TRANSPOSES = {aten.t.default, aten.transpose.int}
_PRODUCTS = {aten.mm.default: aten.addmm.default, aten.bmm.default: aten.baddbmm.default}
_ZEROS = {aten.zeros_like.default, aten.zeros.default, aten.new_zeros.default}


def is_pure(graph: fx.Graph) -> bool:
    """Whether no node writes into its inputs."""
    return not any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in graph.nodes)


def simplify(module: fx.GraphModule) -> fx.GraphModule:
    """Drop what changes nothing, merge repeats, and let products come out the right way round and with their sums."""
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


def split(
    module: fx.GraphModule, late: int, early_outputs: int
) -> tuple[fx.GraphModule, fx.GraphModule, fx.GraphModule]:
    """Cut a graph at its last ``late`` inputs.

    Returns ``early``, which computes all that does not depend on them and returns the first ``early_outputs`` outputs
    followed by the values that the rest needs; ``rest``, which takes those values and the late inputs and returns the
    other outputs; and ``second``, a copy of ``rest`` that returns its second output alone.
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

    def build(chosen: Sequence[fx.Node]) -> fx.GraphModule:
        rest = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        for position, node in enumerate(saved):
            env[node] = rest.placeholder(f"saved_{position}")
        for node in graph.nodes:
            if node.op != "output" and (node in dependent or node.op == "get_attr"):
                env[node] = rest.node_copy(node, env.__getitem__)
        rest.output(tuple(_look_up(env, o) for o in chosen))
        rest.eliminate_dead_code()
        return fx.GraphModule(module, rest)

    return fx.GraphModule(module, early), build(last), build(last[1:2])


_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)")


def as_function(module: fx.GraphModule) -> Callable[..., Any]:
    """The graph as a plain function that calls torch's operators directly.

    The same code that the module runs, past ``nn.Module`` and past the Python layer of each operator; small networks
    notice both.
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


def _drop_no_ops(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.target in _VIEWS:
            node.target = aten.reshape.default
            source = node.args[0]
            while isinstance(source, fx.Node) and source.target in _VIEWS:
                source = source.args[0]
            node.args = (source, list(_shape(node)))
        same = _equal_to(node)
        if same is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _equal_to(node: fx.Node) -> fx.Node | None:
    """An argument that has this node's value already, if there is one."""
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
    if node.target in (aten.reshape.default, aten.expand.default) and _shape(node) == _shape(first):
        return first
    if node.target in (aten.slice.Tensor, aten.slice_backward.default) and _shape(node) == _shape(first):
        return first  # a slice of everything, and its adjoint; steps of 1 are all that keep a shape
    if node.target == aten.mul.Scalar and node.args[1] == 1 and _same_form(node, first):
        return first
    if node.target in _TRANSPOSES and first.target in _TRANSPOSES and _swapped(node) == _swapped(first):
        return first.args[0]  # type: ignore[return-value]
    if node.target == aten.add.Tensor and not node.kwargs:
        for zero, other in (node.args, node.args[::-1]):
            if isinstance(zero, fx.Node) and zero.target in _ZEROS and isinstance(other, fx.Node):
                return other if _same_form(node, other) else None
    return None


def _hoist_transposes(graph: fx.Graph) -> None:
    """``aᵀ + bᵀ`` as ``(a + b)ᵀ``: one transpose, which often meets another one."""
    for node in list(graph.nodes):
        if node.target != aten.add.Tensor or node.kwargs or not all(isinstance(a, fx.Node) for a in node.args):
            continue
        left, right = node.args
        if left.target in _TRANSPOSES and right.target in _TRANSPOSES and _same_form(left, right):
            if _swapped(left) != _swapped(right):
                continue
            inner = left.args[0]
            with graph.inserting_before(node):
                total = graph.call_function(aten.add.Tensor, (inner, right.args[0]))
                _set_form(total, _shape(inner), node)
                turned = graph.call_function(aten.transpose.int, (total, *sorted(_swapped(left))))
                _set_form(turned, _shape(node), node)
            node.replace_all_uses_with(turned)
            graph.erase_node(node)


def _turn_products(graph: fx.Graph) -> None:
    """``(a @ b)ᵀ`` that is added to something as ``bᵀ @ aᵀ``: the sum can then be part of the product."""
    for node in list(graph.nodes):
        if node.target not in _TRANSPOSES or not any(user.target == aten.add.Tensor for user in node.users):
            continue
        product = node.args[0]
        rank = len(_shape(node))
        if product.target in _PRODUCTS and len(product.users) == 1 and _swapped(node) == {rank - 2, rank - 1}:
            with graph.inserting_before(node):
                right, left = (_transposed(graph, factor) for factor in product.args)
                turned = graph.call_function(product.target, (left, right))
            _set_form(turned, _shape(node), node)
            node.replace_all_uses_with(turned)
            graph.erase_node(node)
            graph.erase_node(product)


def _transposed(graph: fx.Graph, node: fx.Node) -> fx.Node:
    shape = list(_shape(node))
    last = len(shape) - 1
    result = graph.call_function(aten.transpose.int, (node, last - 1, last))
    shape[-2:] = shape[:-3:-1]
    _set_form(result, shape, node)
    return result


def _merge_repeats(graph: fx.Graph) -> None:
    """Compute equal expressions once. Random draws are never equal."""
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
    """Compute once, now, what depends on no input: the ones and counts that averages and gradients are made of."""
    graph, known = module.graph, dict[fx.Node, torch.Tensor]()
    for node in list(graph.nodes):
        value = _constant_value(node, known)
        if value is not None:
            known[node] = value
    for position, (node, value) in enumerate(known.items()):
        if all(user in known for user in node.users):
            continue  # only needed for other constants
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


def _constant_value(node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    if node.op != "call_function" or _is_random(node.target) or not isinstance(node.target, torch._ops.OpOverload):
        return None
    form = node.meta.get("val")
    if not isinstance(form, torch.Tensor) or form.device.type == "meta":
        return None
    if node.target in _FILLS:
        return _FILLS[node.target](form.shape, dtype=form.dtype, device=form.device)
    if node.all_input_nodes and all(n in known for n in node.all_input_nodes):
        arguments, keywords = fx.map_arg((node.args, node.kwargs), known.__getitem__)
        return node.target(*arguments, **keywords)
    return None


def _fuse_additions(graph: fx.Graph) -> None:
    """``x + a @ b`` as one call, where the product is used nowhere else."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target != aten.add.Tensor or node.kwargs or not all(isinstance(a, fx.Node) for a in node.args):
            continue
        # Fuse the later product: the earlier operand is then an accumulator that exists already.
        first, second = sorted(node.args, key=order.__getitem__)
        for product, other in ((second, first), (first, second)):
            alone = len(product.users) == 1 and product is not other
            if product.target in _PRODUCTS and alone and _can_hold(node, product, other):
                with graph.inserting_before(node):
                    fused = graph.call_function(_PRODUCTS[product.target], (other, *product.args))
                _set_form(fused, _shape(node), node)
                order[fused] = order[node]
                node.replace_all_uses_with(fused)
                graph.erase_node(node)
                graph.erase_node(product)
                break


def _can_hold(node: fx.Node, product: fx.Node, other: fx.Node) -> bool:
    return _same_form(node, product) and _dtype(other) == _dtype(node) and 0 < len(_shape(other)) <= len(_shape(node))


def _swapped(node: fx.Node) -> set[int]:
    """The two dimensions that a transpose exchanges."""
    rank = len(_shape(node))
    return {0, 1} if node.target == aten.t.default else {int(d) % rank for d in node.args[1:3]}  # type: ignore[arg-type]


def _shape(node: fx.Node) -> torch.Size:
    return node.meta["val"].shape


def _dtype(node: fx.Node) -> torch.dtype:
    return node.meta["val"].dtype


def _same_form(a: fx.Node, b: fx.Node) -> bool:
    return _shape(a) == _shape(b) and _dtype(a) == _dtype(b)


def _set_form(node: fx.Node, shape: Sequence[int], like: fx.Node) -> None:
    node.meta = {"val": torch.empty(shape, dtype=_dtype(like), device="meta")}


def _is_random(target: Callable | str) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _freeze(value: object) -> object:
    """A hashable form of a node's arguments."""
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, dict):
        return tuple(sorted((k, _freeze(v)) for k, v in value.items()))
    return (type(value).__name__, value)  # 1, 1.0 and True are different arguments
