"""A trained classifier as one plain torch module, and parts of a network that are not trained.

Export of a trained classifier as one plain torch module with calibrated logits, which does not need calibrant. A single
network with a linear head keeps its class, and its head is scaled by the temperature: ``W/T`` and ``b/T``. Every other
classifier (several networks, a confidence map, a lapse rate, a network without a linear head) becomes a
``torch.fx.GraphModule`` around the networks.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx, nn

from calibrant.base.settings import check_choice
from calibrant.bilevel import LogitMap
from calibrant.bilevel.variables.logits import describe
from calibrant.methods.confidence import Mapped
from calibrant.methods.core.results import Fitted, Mixture, Recalibrated
from calibrant.models.functional.global_state import generators_restored
from calibrant.models.functional.heads import Head, find_head
from calibrant.models.functional.network import call, logits_of, takes_by_name
from calibrant.models.functional.user_modules import copied, leading_parameter
from calibrant.posthoc.temperature import Temperature

Freeze = Literal["backbone"]


def frozen(model: nn.Module, freeze: Freeze | None, inputs: Any, head: str | None = None) -> nn.Module:
    """A copy of a network of which only the head is trained; with ``freeze=None``, the network itself.

    The other parameters have ``requires_grad=False``. Their layers are in evaluation mode, so that dropout is off and
    the statistics of BatchNorm do not change. ``inputs`` and the name ``head`` are used to find the head.
    """
    check_choice("freeze", freeze, ("backbone", None))
    if freeze is not None:
        model = copied(model)
        kept = f"{head_of(model, inputs, head).name}."
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and f"{name}.".startswith(kept))
        for name, layer in model.named_modules():
            if name and not f"{name}.".startswith(kept) and not kept.startswith(f"{name}."):
                layer.training = False
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            "There is nothing to train: every parameter of the model is frozen (requires_grad=False). Keep at least "
            "the head trainable, as freeze='backbone' does."
        )
    return model


def head_of(model: nn.Module, inputs: Any, name: str | None = None) -> Head:
    """The head of a network, found automatically or by name, without a change of torch's random numbers."""
    with generators_restored(next(model.parameters())):
        return find_head(model, inputs, name)


Steps = tuple[float | LogitMap, ...]
"""What follows the logarithm of a mean of networks, in order: temperatures and confidence maps."""


class Form(NamedTuple):
    """How to call a network, and where its output has the logits."""

    head: str | None
    """The name of the linear layer that computes the logits; None if a temperature cannot be moved into the head."""
    names: tuple[str, ...] | None
    """Arguments that are passed by name; None for a single positional input."""
    output: str
    """"tensor", "key" (``output["logits"]``), "attribute" (``output.logits``) or "first" (``output[0]``)."""
    n_classes: int
    """The number of logits."""


def mean_and_steps(fitted: Fitted) -> tuple[Mixture, Steps]:
    """The mean of the networks and what follows. Raise an error if it cannot be written as a torch module."""
    if isinstance(fitted, Mixture):
        return fitted, ()
    step: float | LogitMap | None = temperature_of(fitted)
    if step is None and isinstance(fitted, Mapped):
        step = fitted.map
    if step is not None:
        mean, steps = mean_and_steps(fitted.model)  # type: ignore[attr-defined]
        return mean, (*steps, step)
    name = type(fitted.calibrator if isinstance(fitted, Recalibrated) else fitted).__name__
    raise ValueError(
        f"{name} has no form as a torch module. Use probs(…) for calibrated probabilities, or modules for the "
        "uncalibrated networks."
    )


def temperature_of(fitted: Fitted) -> float | None:
    """The temperature that is the last step of a classifier; None if that is another step."""
    if isinstance(fitted, Recalibrated) and type(fitted.calibrator) is Temperature:
        return float(fitted.calibrator.temperature_)
    if isinstance(fitted, Mapped) and not fitted.map.hidden:
        return 1 / fitted.map.factor
    return None


def form_of(model: nn.Module, inputs: Any, head: str | None = None) -> Form:
    """The form of a network, found by running it on a few inputs."""
    twin = copied(model).eval()
    with torch.no_grad(), generators_restored(next(model.parameters())):
        output = call(twin, inputs)
    kind = "first"
    if isinstance(output, Tensor):
        kind = "tensor"
    elif isinstance(output, Mapping):
        kind = "key"
    elif hasattr(output, "logits"):
        kind = "attribute"
    names = tuple(inputs) if isinstance(inputs, Mapping) and takes_by_name(twin, inputs) else None
    logits = logits_of(output)
    return Form(_foldable(twin, inputs, logits, head), names, kind, logits.shape[1])


def plain_module(fitted: Fitted, networks: Sequence[nn.Module], form: Form) -> nn.Module:
    """One module in evaluation mode; the softmax of its output gives the classifier's probabilities."""
    mean, steps = mean_and_steps(fitted)
    bias = mean.bias
    scales = [step for step in steps if isinstance(step, float)]
    if len(networks) == 1 and not mean.lapse and form.head is not None and len(scales) == len(steps):
        twin = copied(networks[0]).eval()
        head = twin.get_submodule(form.head)
        if bias is None or bool((bias == 0).all()) or head.bias is not None:
            _scale(head, float(mean.temperature), bias, math.prod(scales))
            return twin
    return _graph(mean, steps, networks, form)


def _foldable(model: nn.Module, inputs: Any, logits: Tensor, name: str | None) -> str | None:
    """The name of the head if a temperature can be moved into its parameters, else None."""
    try:
        head_name = head_of(model, inputs, name).name
    except ValueError:
        if name is not None:
            raise
        return None
    head = model.get_submodule(head_name)
    if type(head) not in (nn.Linear, nn.Bilinear) or "weight" not in head._parameters:
        return None
    _scale(head, 2.0, None, 1.0)
    with torch.no_grad(), generators_restored(next(model.parameters())):
        same = torch.allclose(logits_of(call(model, inputs)), logits / 2, atol=1e-4, rtol=1e-3)
    return head_name if same else None


def _scale(head: Any, temperature: float, bias: Tensor | None, after: float) -> None:
    """Apply ``z ↦ (z/T + b)/T'`` by changing the parameters of the layer that computes z."""
    with torch.no_grad():
        head.weight.div_(temperature * after)
        if head.bias is not None:
            head.bias.div_(temperature)
            if bias is not None:
                head.bias.add_(bias.to(head.bias))
            head.bias.div_(after)


def _graph(mixture: Mixture, steps: Steps, networks: Sequence[nn.Module], form: Form) -> fx.GraphModule:
    """The networks and the last steps as a graph that torch can run, save, script and export without calibrant."""
    root, graph = nn.Module(), fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    root.networks = nn.ModuleList(map(copied, networks))
    like = leading_parameter(networks[0])
    placeholders = [graph.placeholder(name) for name in form.names or ("inputs",)]
    positional = tuple(placeholders) if form.names is None else ()
    by_name: dict[str, Any] = dict(zip(form.names or (), placeholders, strict=False))

    def constant(name: str, value: float | Tensor, dtype: torch.dtype = like.dtype) -> Any:
        root.register_buffer(name, torch.as_tensor(value, dtype=dtype, device=like.device))
        return fx.Proxy(graph.get_attr(name), tracer)

    temperature = constant("temperature", float(mixture.temperature))
    bias = None if mixture.bias is None else constant("bias", mixture.bias)
    floor = constant("floor", mixture.lapse / form.n_classes) if mixture.lapse else None

    def calibrated(logits: Any) -> Any:
        """``z/T + b``, or log ``q(z)`` if there is a lapse rate."""
        scaled = logits / temperature
        scaled = scaled if bias is None else scaled + bias
        return scaled if floor is None else torch.log(torch.softmax(scaled, -1) * (1 - mixture.lapse) + floor)

    pooled = mixture.pool == "probs" and len(networks) > 1
    shares = mixture.shares or (1.0,) * len(networks)
    members: list[Any] = []
    for position, share in enumerate(shares):
        output = fx.Proxy(graph.call_module(f"networks.{position}", positional, by_name), tracer)
        logits: Any = _OUTPUTS[form.output](output)
        member = torch.softmax(calibrated(logits), -1) if pooled else logits
        members.append(member * (share / sum(shares)) if len(networks) > 1 else member)
    mean: Any = functools.reduce(operator.add, members)
    mean = torch.log(mean) if pooled else calibrated(mean)
    for position, step in enumerate(steps):
        if isinstance(step, LogitMap):  # as in its forward pass, on symbols
            wide = torch.promote_types(like.dtype, torch.float32)
            named = {name: value.detach().clone() for name, value in step.named_parameters()}
            parts = {name: constant(f"after_{position}_{name}", value, wide) for name, value in named.items()}
            symbols: Any = SimpleNamespace(largest=step.largest, **parts)
            mean = mean.to(wide)
            mean = mean * torch.exp(LogitMap.log_factor(symbols, describe(mean, form.n_classes))).unsqueeze(-1)
        else:
            mean = mean / constant(f"after_{position}", step)
    graph.output(mean.node)
    return fx.GraphModule(root, graph, class_name="CalibratedModule").eval()


_OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda output: output,
    "attribute": lambda output: output.logits,
    "key": lambda output: output["logits"],
    "first": lambda output: output[0],
}
"""The logits in the output of a network, by :attr:`Form.output`."""
