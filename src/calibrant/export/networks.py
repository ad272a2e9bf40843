"""Networks and other members as ONNX operators; functions map the name of the inputs to that of the logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from calibrant.data.scaling import Scaling
from calibrant.export.graph import Graph
from calibrant.methods import Mixture
from calibrant.methods.blend import Blend
from calibrant.models.architectures.mlp import EmbeddingLayer, PiecewiseLinear
from calibrant.pool.pool import FLOOR


def scaled(graph: Graph, inputs: str, scaling: Scaling) -> str:
    """Return the networks' float32 inputs for a float64 table; see :class:`calibrant.data.scaling.Scaling`."""
    sources, width = scaling.sources, scaling.width
    first = np.concatenate([[True], np.diff(sources) != 0]) if width else np.zeros(0, dtype=bool)
    place = np.arange(width) - np.repeat(np.flatnonzero(first), np.diff([*np.flatnonzero(first), width]))
    kinds = (np.zeros(len(scaling.mean), int) if scaling.categories is None else scaling.categories)[sources]
    number, marker = (kinds == 0) & first, place == np.maximum(kinds, 1)
    used = number & np.isfinite(scaling.scale[sources])
    values = graph.add("Gather", inputs, graph.constant(sources, np.int64), axis=1)
    absent = graph.add("IsNaN", values)
    shift, unit = np.where(used, scaling.mean[sources], 0.0), np.where(used, scaling.scale[sources], 1.0)
    shifted = graph.add("Div", graph.add("Sub", values, shift), unit)
    zero = graph.add("Or", absent, graph.constant(~used, bool))
    plain = graph.add("Where", zero, 0.0, shifted)
    excess = graph.add("Max", graph.add("Sub", graph.add("Abs", plain), scaling.limit), 0.0)
    further = graph.add("Min", graph.add("Log", graph.add("Add", excess, 1.0)), scaling.limit)
    near = graph.add("Min", graph.add("Max", plain, -scaling.limit), scaling.limit)
    result = graph.add("Add", near, graph.add("Mul", graph.add("Sign", plain), further))
    if not number.all():
        of_code = graph.add("Equal", values, np.where(kinds > 0, place, -np.inf))  # no code is −∞
        of_gap = graph.add("And", absent, graph.constant(marker, bool))
        result = graph.add(
            "Where", graph.constant(number, bool), result, graph.cast(graph.add("Or", of_code, of_gap), np.float64)
        )
    return graph.cast(result, np.float32)


def probabilities(graph: Graph, inputs: str, model: Mixture | Blend, n_classes: int) -> str:
    """Return P(class | x) in float64 for scaled inputs in float32."""
    wide = graph.cast(inputs, np.float64)
    if isinstance(model, Mixture):
        return _mixture(graph, wide, model, n_classes)
    scores = graph.rows(model.pool.bias, wide)
    members: list[str] = [] if model.mixture is None else [_mean(graph, wide, model.mixture)]
    members += [other.onnx(graph, inputs) for other in model.others.values()]
    for weight, member in zip(model.pool.weights.tolist(), members, strict=True):
        bounded = graph.add("Max", graph.add("LogSoftmax", member, axis=1), FLOOR)
        scores = graph.add("Add", scores, graph.add("Mul", bounded, weight))
    return _lapsed(graph, scores, model.pool.lapse, n_classes)


def _mixture(graph: Graph, inputs: str, mixture: Mixture, n_classes: int) -> str:
    def calibrated(logits: str) -> str:
        value = graph.add("Div", logits, float(mixture.temperature))
        value = value if mixture.bias is None else graph.add("Add", value, _array(mixture.bias))
        return _lapsed(graph, value, mixture.lapse, n_classes)

    if mixture.pool == "logits":
        return calibrated(_mean(graph, inputs, mixture))
    return _mean(graph, inputs, mixture, calibrated)


def _mean(graph: Graph, inputs: str, mixture: Mixture, transform: Callable[[str], str] = lambda logits: logits) -> str:
    """Return the mean over networks of their logits, or of ``each`` applied to the logits."""
    shares = mixture.shares or (1.0,) * len(mixture.networks)
    total = ""
    for network, share in zip(mixture.networks, shares, strict=True):
        term = graph.add("Mul", transform(layer(graph, inputs, network.module)), share / sum(shares))
        total = graph.add("Add", total, term) if total else term
    return total


def _lapsed(graph: Graph, scores: str, lapse: float, n_classes: int) -> str:
    """``(1 − λ)·softmax(scores) + λ/C``."""
    probs = graph.add("Softmax", scores, axis=1)
    return graph.add("Add", graph.add("Mul", probs, 1 - lapse), lapse / n_classes)


def layer(graph: Graph, inputs: str, module: nn.Module) -> str:
    """Write a layer of a classifier's network, or a sequence of layers."""
    if isinstance(module, nn.Sequential):
        for inner in module:
            inputs = layer(graph, inputs, inner)
        return inputs
    if isinstance(module, nn.Linear):  # also that of an embedding, which starts from zero
        product = graph.add("MatMul", inputs, _array(module.weight).T)
        return product if module.bias is None else graph.add("Add", product, _array(module.bias))
    if isinstance(module, EmbeddingLayer):
        plain = layer(graph, inputs, module.linear)
        return graph.add("Add", plain, layer(graph, layer(graph, inputs, module.encoding), module.embedded))
    if isinstance(module, PiecewiseLinear):
        values = graph.add("Gather", inputs, graph.constant(_array(module.source), np.int64), axis=1)
        inside = graph.add("Mul", graph.add("Sub", values, _array(module.lower)), _array(module.inverse))
        inside = graph.add("Min", graph.add("Max", inside, 0.0), 1.0)
        return graph.add("Mul", graph.add("Sub", inside, _array(module.mean)), module.factor)
    if isinstance(module, nn.SiLU):
        return graph.add("Mul", inputs, graph.add("Sigmoid", inputs))
    return graph.add({nn.ReLU: "Relu", nn.Tanh: "Tanh"}[type(module)], inputs)


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().double().numpy()
    return array
