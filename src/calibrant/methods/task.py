"""What a method is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.data.streams import TensorStream, mix

FULL_BATCH = 4096
"""Up to so many rows a step sees all of them, as in the first paper; above, mini-batches."""
BATCH = 512


@dataclass(frozen=True)
class Part:
    """Samples: inputs as the network takes them, class indices, and optional sample weights."""

    inputs: Tensor
    labels: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise ValueError(
                f"There are {len(self.inputs)} inputs and {len(self.labels)} labels; they must be the same samples."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> Part:
        return Part(self.inputs[rows], self.labels[rows], None if self.weights is None else self.weights[rows])

    def __add__(self, other: Part) -> Part:
        """Both samples as one. Weights say how the samples of one part compare; the parts themselves count by size."""
        weights = None
        if self.weights is not None or other.weights is not None:
            weights = torch.cat([_mean_one(self), _mean_one(other)])
        return Part(torch.cat([self.inputs, other.inputs]), torch.cat([self.labels, other.labels]), weights)

    def to(self, device: torch.device | str | None) -> Part:
        """The same samples on another device."""
        if device is None:
            return self
        return Part(
            self.inputs.to(device), self.labels.to(device), None if self.weights is None else self.weights.to(device)
        )

    def stream(
        self,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        index: Tensor | None = None,
        hyper: dict[str, Tensor] | None = None,
    ) -> TensorStream:
        """Batches of these samples, for the engine."""
        return TensorStream(
            self.inputs, self.labels, weights=self.weights, index=index, batch_size=batch_size, seed=seed, hyper=hyper
        )


def _mean_one(part: Part) -> Tensor:
    if part.weights is None:
        return torch.ones(len(part), dtype=torch.float64, device=part.labels.device)
    return part.weights.double() / part.weights.double().mean()


@dataclass(frozen=True)
class Task:
    """One training problem. ``val`` may be left out for methods that hold out their own validation part."""

    train: Part
    val: Part | None
    classes: int
    seed: int = 0

    @property
    def shape(self) -> tuple[Any, ...]:
        """Tasks of one shape can be trained as one population."""
        val = None if self.val is None else (len(self.val), self.val.weights is None)
        return tuple(self.train.inputs.shape), self.train.weights is None, val, self.classes, self.train.inputs.dtype

    def to(self, device: torch.device | str | None) -> Task:
        """The same task on another device."""
        return replace(self, train=self.train.to(device), val=None if self.val is None else self.val.to(device))

    def need_val(self, who: str) -> Part:
        """The validation part, or an error that says what it is for."""
        if self.val is None:
            raise ValueError(f"{who} needs a validation part beside the training part: give X_val and y_val.")
        return self.val


class Fitted:
    """A trained classifier: probabilities, and whatever else its method learned."""

    extras: dict[str, Any]
    failure: str | None
    """Why training broke down, for a job of ``fit_all``, which goes on without it; ``Method.fit`` raises instead."""

    def probs(self, inputs: Tensor) -> Tensor:
        """P(class | input), (n, C), on the CPU."""
        raise NotImplementedError


@dataclass(frozen=True)
class Failed(Fitted):
    """A training that broke down and left no network: the reason, and NaN for every probability."""

    failure: str | None
    classes: int
    extras: dict[str, Any] = field(default_factory=dict)

    def probs(self, inputs: Tensor) -> Tensor:
        return torch.full((len(inputs), self.classes), torch.nan, dtype=torch.float64)


@dataclass(frozen=True)
class Mixture(Fitted):
    """The mean of networks, calibrated: one network is the common case.

    ``pool="probs"``: ``p(x) = mean_k q(z_k(x))``, as ensembles do. ``pool="logits"``: ``p(x) = q(mean_k z_k(x))``,
    which stays as sharp as its networks are where they agree. In both ``q(z) = (1 − λ)·softmax(z/T + b) + λ/C``.
    """

    networks: tuple[Any, ...]
    """What gives logits: ``Solution`` objects of one problem each."""
    temperature: float = 1.0
    bias: Tensor | None = None
    """b, one entry a class."""
    lapse: float = 0.0
    """λ, the share of labels that no input explains: confidence is at most 1 − λ + λ/C."""
    pool: Literal["probs", "logits"] = "probs"
    extras: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None

    def probs(self, inputs: Tensor) -> Tensor:
        total: Tensor | None = None
        for network in self.networks:
            logits = self.logits(network, inputs).double()
            each = logits if self.pool == "logits" else self.calibrated(logits)
            total = each if total is None else total + each
        assert total is not None
        mean = total / len(self.networks)
        return (self.calibrated(mean) if self.pool == "logits" else mean).cpu()

    def calibrated(self, logits: Tensor) -> Tensor:
        """``q(z)`` of logits, (n, C)."""
        scaled = logits / self.temperature
        probs = (scaled if self.bias is None else scaled + self.bias.to(scaled)).softmax(1)
        return torch.lerp(probs, torch.full_like(probs, 1 / probs.shape[1]), self.lapse) if self.lapse else probs

    @staticmethod
    def logits(network: Any, inputs: Tensor) -> Tensor:
        """One network's logits."""
        return network.predict(inputs.to(network.params.device))


def streams(
    task: Task, size: int | None = None, hyper: dict[str, Tensor] | None = None, *, val: bool = True
) -> dict[str, Any]:
    """The data of both levels as ``train`` and ``val``, each in an order of its own; no ``val`` where there is none."""
    levels = [("train", task.train, size, 10)]
    if val and task.val is not None:
        levels.append(("val", task.val, None, 11))
    return {
        name: part.stream(batch_size=batch_size(len(part), wanted), seed=mix(task.seed, purpose), hyper=hyper)
        for name, part, wanted, purpose in levels
    }


def batch_size(samples: int, wanted: int | None = None) -> int | None:
    """How many rows a step sees: what is wanted, or else all of them up to FULL_BATCH and BATCH of more."""
    if wanted is not None:
        return wanted
    return None if samples <= FULL_BATCH else BATCH


def total_steps(samples: int, epochs: int | None, size: int | None, default: int, passes: int = 20) -> int:
    """Inner steps for so many ``epochs`` over the data.

    Without them: ``default`` steps of the full batch; with mini-batches at least as many, and ``passes`` epochs.
    """
    per_epoch = 1 if size is None else -(-samples // size)
    if epochs is not None:
        return epochs * per_epoch
    return max(default, passes * per_epoch) if per_epoch > 1 else default
