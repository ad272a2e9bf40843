"""Small passes over traced graphs: what autograd's generic formulas leave on the table.

All passes keep values exactly or up to the rounding of one fused multiply-add; none needs to know which model or loss
the graph came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

aten = torch.ops.aten

_NO_OPS = {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}
_FUSED = {aten.mm.default: aten.addmm.default, aten.bmm.default: aten.baddbmm.default}


def is_pure(graph: fx.Graph) -> bool:
    """Whether no node writes into its inputs."""
    return not any(
        isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in graph.nodes
    )


def simplify(module: fx.GraphModule) -> fx.GraphModule:
    """Drop no-ops and additions of zero, fold double transposes, merge repeats, fuse additions into products."""
    graph = module.graph
    for node in list(graph.nodes):
        replacement = _simpler(node)
        if replacement is not None:
            node.replace_all_uses_with(replacement)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    _merge_repeats(graph)
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
    saved = [
        n
        for n in graph.nodes
        if n not in dependent
        and n.op != "get_attr"
        and (n in last or any(u in dependent and u.op != "output" for u in n.users))
    ]
    early, env = fx.Graph(), {}
    for node in graph.nodes:
        if node not in dependent and node.op != "output":
            env[node] = early.node_copy(node, env.__getitem__)
    early.output((*(_look_up(env, o) for o in outputs[:early_outputs]), *(env[n] for n in saved)))
    early.eliminate_dead_code()

    def build(chosen: Sequence[fx.Node]) -> fx.GraphModule:
        rest, env = fx.Graph(), {}
        for position, node in enumerate(saved):
            env[node] = rest.placeholder(f"saved_{position}")
        for node in graph.nodes:
            if node.op == "get_attr" and node not in dependent:
                env[node] = rest.node_copy(node, env.__getitem__)
            elif node in dependent and node.op != "output":
                env[node] = rest.node_copy(node, env.__getitem__)
        rest.output(tuple(_look_up(env, o) for o in chosen))
        rest.eliminate_dead_code()
        return fx.GraphModule(module, rest)

    return fx.GraphModule(module, early), build(last), build(last[1:2])


def _look_up(env: dict[fx.Node, fx.Node], value: object) -> object:
    return env[value] if isinstance(value, fx.Node) else value


def _simpler(node: fx.Node) -> fx.Node | None:
    """The node that may stand in for this one, if any."""
    if node.target in _NO_OPS:
        return node.args[0]  # type: ignore[return-value]
    if node.target == aten.t.default:
        inner = node.args[0]
        if isinstance(inner, fx.Node) and inner.target == aten.t.default:
            return inner.args[0]  # type: ignore[return-value]
    if node.target == aten.view.default and list(node.args[0].meta["val"].shape) == list(node.args[1]):  # type: ignore[union-attr]
        return node.args[0]  # type: ignore[return-value]
    if node.target == aten.add.Tensor and not node.kwargs:
        for zero, other in (node.args, node.args[::-1]):
            if _is_zeros(zero) and isinstance(other, fx.Node) and _same_form(node, other):
                return other
    return None


def _is_zeros(value: object) -> bool:
    return isinstance(value, fx.Node) and value.target in (
        aten.zeros_like.default,
        aten.zeros.default,
        aten.new_zeros.default,
    )


def _same_form(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    return (
        isinstance(x, torch.Tensor)
        and isinstance(y, torch.Tensor)
        and x.shape == y.shape
        and x.dtype == y.dtype
    )


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


def _fuse_additions(graph: fx.Graph) -> None:
    """``x + a @ b`` as one call, where the product is used nowhere else."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target != aten.add.Tensor or node.kwargs:
            continue
        # Fuse the later product: the earlier operand is then an accumulator that exists already.
        operands = sorted((a for a in node.args if isinstance(a, fx.Node)), key=order.__getitem__)
        for product in reversed(operands):
            others = [a for a in node.args if a is not product]
            if (
                product.target in _FUSED
                and len(product.users) == 1
                and len(others) == 1
                and _same_form(node, product)
            ):
                other = others[0]
                if isinstance(other, fx.Node) and _same_dtype(node, other):
                    with graph.inserting_before(node):
                        fused = graph.call_function(_FUSED[product.target], (other, *product.args))
                    fused.meta = dict(node.meta)
                    order[fused] = order[node]
                    node.replace_all_uses_with(fused)
                    graph.erase_node(node)
                    graph.erase_node(product)
                    break


def _same_dtype(a: fx.Node, b: fx.Node) -> bool:
    y = b.meta.get("val")
    return isinstance(y, torch.Tensor) and y.dtype == a.meta["val"].dtype and y.dim() > 0


def _is_random(target: Callable | str) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _freeze(value: object) -> object:
    """A hashable form of a node's arguments."""
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, dict):
        return tuple(sorted((k, _freeze(v)) for k, v in value.items()))
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    return (type(value).__name__, value)  # 1, 1.0 and True are different arguments
