"""Trained classifiers, which are the results of all methods, and what a solved problem has learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.base.inputs import shareable
from calibrant.bilevel import L2, LabelNoise, LabelSmoothing, OuterVariables, SampleWeights, Solution
from calibrant.data.streams.loaders import LoaderStream
from calibrant.data.streams.streams import TensorStream, as_tensors
from calibrant.methods.core.samples import Samples
from calibrant.models.architectures.stacked import MeanPerceptron, Perceptron
from calibrant.models.functional.user_modules import copied


class Fitted:
    """A trained classifier.

    ``logits``, ``probs``, ``classes`` and ``confidence`` accept inputs in the form that the network accepts: a tensor,
    an array, or a mapping of them.
    """

    extras: dict[str, Any]
    """What the method learned besides the network: ``sample_weights``, ``history``, ``l2``, …"""
    failure: str | None
    """Why training failed, for a job of ``fit_all``, which continues with the others; ``Method.fit`` raises instead."""

    networks: tuple[Any, ...]
    """The trained networks; each has ``logits(inputs)``."""

    def probs(self, inputs: Any) -> Tensor:
        """P(class | input), (n, C), float64 on the CPU."""
        raise NotImplementedError

    def logits(self, inputs: Any) -> Tensor:
        """Logits whose softmax is :meth:`probs`, (n, C); by default log-probabilities."""
        return self.probs(inputs).clamp_min(1e-300).log()

    def classes(self, inputs: Any) -> Tensor:
        """The most probable class of each input, (n,)."""
        return self.probs(inputs).argmax(1)

    def confidence(self, inputs: Any) -> Tensor:
        """The probability of the most probable class, (n,)."""
        return self.probs(inputs).amax(1)

    @property
    def sample_weights(self) -> Tensor | None:
        """The learned weight of each training sample; None for methods that do not learn weights."""
        return self.extras.get("sample_weights")


@dataclass(frozen=True)
class Failed(Fitted):
    """A training run that failed without a usable network: the reason, and NaN for every probability."""

    failure: str | None
    count: int
    """The number of classes."""
    extras: dict[str, Any] = field(default_factory=dict)
    networks: tuple[Any, ...] = ()

    def probs(self, inputs: Any) -> Tensor:
        rows = len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
        return torch.full((rows, self.count), torch.nan, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class Mixture(Fitted):
    """The calibrated mean of one or more networks.

    ``pool="probs"``: ``p(x) = mean_k q(z_k(x))``, as in ensembles. ``pool="logits"``: ``p(x) = q(mean_k z_k(x))``,
    which is as sharp as the networks if they agree. In both cases ``q(z) = (1 − λ)·softmax(z/T + b) + λ/C``.
    """

    networks: tuple[Any, ...]
    """Objects with ``logits(inputs)``: ``Solution`` objects of one problem each."""
    temperature: float = 1.0
    bias: Tensor | None = None
    """b, one entry for each class."""
    lapse: float = 0.0
    """λ, the share of labels that are random whatever the input. Confidence is at most 1 − λ + λ/C."""
    pool: Literal["probs", "logits"] = "probs"
    extras: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    shares: tuple[float, ...] | None = None
    """The weight of each network in the mean; None: equal weights."""

    @property
    def link(self) -> dict[str, Any]:
        """All values but the networks, as plain numbers and arrays for files."""
        bias = None if self.bias is None else self.bias.cpu().numpy()
        numbers = {"temperature": float(self.temperature), "lapse": float(self.lapse)}
        return {**numbers, "bias": bias, "pool": self.pool, "shares": self.shares}

    @classmethod
    def of_link(cls, networks: tuple[Any, ...], *, bias: np.ndarray | None, **link: Any) -> Mixture:
        """The inverse of :attr:`link`; values out of range raise an error."""
        mixture = cls(networks, bias=None if bias is None else torch.from_numpy(bias), **link)
        if not (mixture.temperature > 0 and 0 <= mixture.lapse <= 1):
            raise ValueError("temperature or lapse is out of range")
        if mixture.pool not in ("probs", "logits"):
            raise ValueError(f"pool must be one of 'probs', 'logits', not {mixture.pool!r}")
        if not networks:
            raise ValueError("at least one network is needed")
        if mixture.shares is not None and (len(mixture.shares) != len(networks) or min(mixture.shares) <= 0):
            raise ValueError("shares must have a positive number for each network")
        return mixture

    def probs(self, inputs: Any) -> Tensor:
        if self.pool == "logits":
            return self.calibrated(self.mean(inputs)).cpu()
        return self.mean(inputs, self.calibrated).cpu()

    @cached_property
    def _perceptrons(self) -> MeanPerceptron | None:
        """The mean of the networks if all of them are perceptrons on the CPU."""
        views = (network.problem.view for network in self.networks if isinstance(network, Solution))
        if any(Perceptron.of(view.module) is None for view in views):  # do not copy large networks
            return None
        modules = [network_module(network) for network in self.networks]
        return MeanPerceptron.of(modules, self.shares or [1.0] * len(modules))

    def mean(self, inputs: Any, each: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The mean over networks of ``each(logits)``; by default of the logits."""
        rows = torch.from_numpy(shareable(inputs)) if isinstance(inputs, np.ndarray) else inputs
        if each is None and self._perceptrons is not None and isinstance(rows, Tensor) and rows.dim() == 2:
            return self._perceptrons.logits(rows.cpu())
        shares = self.shares or [1.0] * len(self.networks)
        logits = (network_logits(network, inputs).double() for network in self.networks)
        outputs = logits if each is None else map(each, logits)
        total: Any = sum(share * output for share, output in zip(shares, outputs, strict=True))
        return total / sum(shares)

    def calibrated(self, logits: Tensor) -> Tensor:
        """``q(z)`` of logits, (n, C)."""
        scaled = logits / self.temperature
        probs = (scaled if self.bias is None else scaled + self.bias.to(scaled)).softmax(1)
        return torch.lerp(probs, torch.full_like(probs, 1 / probs.shape[1]), self.lapse) if self.lapse else probs


class Following(Fitted):
    """A classifier that changes the predictions of ``model``, a trained one."""

    model: Fitted

    @property
    def networks(self) -> tuple[Any, ...]:  # type: ignore[override]
        return self.model.networks


@dataclass(frozen=True)
class Recalibrated(Following):
    """A trained model followed by a calibrator."""

    model: Fitted
    calibrator: Any
    extras: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None

    def probs(self, inputs: Any) -> Tensor:
        return torch.from_numpy(self.calibrator.predict_proba(self.model.logits(inputs).numpy()))


def begun(networks: Sequence[Any]) -> tuple[Any, ...]:
    """The networks whose training started. After an interrupt, the later networks are untrained."""
    return tuple(network for network in networks if network.outer_steps) or tuple(networks)


def held_out_logits(model: Fitted, part: Samples) -> tuple[Tensor, Tensor, Tensor | None]:
    """A model's logits on a part, and the labels and weights of the part, on the CPU."""
    weights = None if part.sample_weight is None else part.sample_weight.cpu()
    return *part.predicted(model.logits), weights


def network_module(network: Any) -> nn.Module | None:
    """A trained network as a module in evaluation mode; None if the network has no such form."""
    if not isinstance(network, Solution):
        return getattr(network, "frozen", None)
    view = network.problem.view
    return view.export(network.params, network.buffers or {}, copied(view.module)).eval()


def network_logits(network: Any, inputs: Any) -> Tensor:
    """The logits of one trained network, computed on its device."""
    return network.logits(as_tensors(inputs, network.params.device, None))


@torch.no_grad()
def weights_at(phi: Tensor, solution: Solution) -> Tensor:
    """The weight of every training sample for a given φ of a solved problem."""
    stream = solution.problem.train
    assert isinstance(stream, TensorStream | LoaderStream)

    def read_weights(outer: nn.Module) -> Tensor:
        (weights,) = (part for part in variables_of(outer) if isinstance(part, SampleWeights))
        return weights.quantities(stream.hyper)["weights"]

    return solution.problem.outer_view.run(phi.to(solution.phi), read_weights).cpu()


def suspicion(weights: Tensor, probs: Tensor, labels: Tensor) -> Tensor:
    """How wrong a training label looks, 0 to 1: ``1 − w_i·p(y_i | x_i)``.

    A label is trusted if training kept its weight *and* the trained network agrees with it.
    """
    return 1 - weights.double() * probs.double().gather(1, labels.cpu().unsqueeze(1)).squeeze(1)


def variables_of(outer: nn.Module) -> list[nn.Module]:
    """The single variables of an outer module, in order."""
    return list(outer.parts) if isinstance(outer, OuterVariables) else [outer]


def read_outer(outer: nn.Module) -> dict[str, Tensor]:
    """The outer variables other than the weights, by name, on their natural scale."""
    values = {}
    for part in variables_of(outer):
        if isinstance(part, L2):
            values["l2"] = part.coefficients().cpu()
        elif isinstance(part, LabelSmoothing):
            values["label_smoothing"] = part.smoothing().cpu()
        elif isinstance(part, LabelNoise):
            values["label_noise"] = part.rate().cpu()
    return values
