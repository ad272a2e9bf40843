"""A small neural calibrator: a monotone curve shared by all classes, plus a residual network."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor
from torch.nn.functional import log_softmax as torch_log_softmax
from torch.nn.functional import softplus

from calibrant.posthoc._base import Calibrator, Floats
from calibrant.posthoc.temperature import bounded_temperature

_KNOTS = 12
_MIN_SAMPLES = 50


class NeuralCalibrator(Calibrator):
    """Neural calibration: p = softmax(η(x) + g(x)), x the log-probabilities after temperature scaling.

    After Pan, Ao, Tang, Lu, Liu, Xiao and He, "Field-aware Calibration: A Simple and Empirically Strong Method for
    Reliable Probabilistic Predictions", WWW 2020. η is an increasing piecewise-linear curve (their isotonic line-plot
    scaling), and g a small network. Deviations: the paper is binary; here one η serves all classes. The inputs of g are
    the log-probabilities, since there are no other fields. Slopes are positive by construction (softplus); the paper
    penalises negative ones. η starts at the identity and g at 0, so that training starts at temperature scaling. The
    number of steps is the one with the smallest loss on a held-out fifth; then all samples are used. Below 50 samples
    no step is taken.

    Parameters
    ----------
    hidden : int
        Width of g's one hidden layer.
    max_steps : int
        The largest number of steps of Adam, each on the full set.
    learning_rate : float
        Learning rate of Adam.
    weight_decay : float
        Strength of the penalty on g and on the deviation of η from the identity.
    random_state : int
        Seed of the split and of g's first layer.
    from_probs : bool
        True if ``fit`` and ``predict_proba`` get probabilities instead of logits.

    Attributes
    ----------
    temperature_ : float
        T of the first step.
    steps_ : int
        Number of steps chosen on the held-out fifth.
    knots_, slopes_, input_weight_, input_bias_, output_weight_, output_bias_ : arrays
        η and g.
    """

    def __init__(
        self,
        hidden: int = 16,
        max_steps: int = 300,
        learning_rate: float = 0.01,
        weight_decay: float = 1e-3,
        random_state: int = 0,
        *,
        from_probs: bool = False,
    ) -> None:
        self.hidden = hidden
        self.max_steps = max_steps
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.random_state = random_state
        self.from_probs = from_probs

    def _fit(self, scores: Floats, labels: np.ndarray, weights: Floats) -> None:
        if self.hidden < 1 or self.max_steps < 0:
            raise ValueError(
                f"hidden must be at least 1 and max_steps at least 0; got {self.hidden} and {self.max_steps}."
            )
        self.temperature_ = bounded_temperature(scores, labels, weights)
        x = log_softmax(scores / self.temperature_, axis=1)
        self.knots_ = np.unique(np.quantile(x, np.linspace(0.0, 1.0, _KNOTS)))
        inputs = (torch.from_numpy(x), torch.from_numpy(labels), torch.from_numpy(weights))
        self.steps_ = 0
        if len(x) >= _MIN_SAMPLES:
            order = torch.from_numpy(np.random.default_rng(self.random_state).permutation(len(x)))
            validation, training = ([values[rows] for values in inputs] for rows in order.tensor_split([len(x) // 5]))
            self.steps_ = self._train(training, self.max_steps, validation)[1]
        net = self._train(list(inputs), self.steps_, None)[0]
        self.slopes_ = softplus(net.raw_slopes).numpy()
        self.input_weight_, self.input_bias_ = net.input_weight.numpy(), net.input_bias.numpy()
        self.output_weight_, self.output_bias_ = net.output_weight.numpy(), net.output_bias.numpy()

    def _predict(self, scores: Floats) -> Floats:
        x = torch.from_numpy(log_softmax(scores / self.temperature_, axis=1))
        parts = (self.input_weight_, self.input_bias_, self.output_weight_, self.output_bias_)
        g = _residual(x, *(torch.from_numpy(part) for part in parts))
        eta = _curve(x, torch.from_numpy(self.knots_), torch.from_numpy(self.slopes_))
        return torch.softmax(eta + g, dim=1).numpy()

    def _train(self, data: list[Tensor], steps: int, validation: list[Tensor] | None) -> tuple[_Net, int]:
        """Adam on the full set: the network after the last step, and the step of the smallest loss on `validation`."""
        n_classes = data[0].shape[1]
        knots = torch.from_numpy(self.knots_)
        net = _start(n_classes, self.hidden, len(self.knots_) + 1, self.random_state)
        identity = net.raw_slopes.clone()
        moving = [part.requires_grad_() for part in net]
        optimiser = torch.optim.Adam(moving, lr=self.learning_rate)

        def loss(batch: list[Tensor]) -> Tensor:
            x, y, w = batch
            g = _residual(x, *net[1:])
            log_p = torch_log_softmax(_curve(x, knots, softplus(net.raw_slopes)) + g, dim=1)
            return -(w * log_p.gather(1, y[:, None])[:, 0]).sum() / w.sum()

        best_step, best_loss = 0, np.inf
        for step in range(steps + 1):
            if validation is not None:
                with torch.no_grad():
                    value = loss(validation).item()
                if value < best_loss:
                    best_step, best_loss = step, value
                elif step - best_step > 50:
                    break
            if step == steps:
                break
            optimiser.zero_grad()
            decay = net.input_weight.square().sum() + net.output_weight.square().sum()
            decay = decay + (net.raw_slopes - identity).square().sum()
            (loss(data) + self.weight_decay * decay).backward()
            optimiser.step()
        return _Net(*(part.detach() for part in net)), best_step


class _Net(NamedTuple):
    raw_slopes: Tensor
    input_weight: Tensor
    input_bias: Tensor
    output_weight: Tensor
    output_bias: Tensor


def _start(n_classes: int, hidden: int, n_slopes: int, seed: int) -> _Net:
    """The identity: slopes of 1, an output layer of zeros."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(hidden, n_classes, generator=generator, dtype=torch.float64, device="cpu") / n_classes**0.5
    slopes = first.new_full((n_slopes,), float(np.log(np.expm1(1.0))))
    zeros = first.new_zeros(hidden + n_classes + n_classes * hidden)
    bias, out_bias, out = zeros.split([hidden, n_classes, n_classes * hidden])
    return _Net(slopes, first, bias.clone(), out.reshape(n_classes, hidden).clone(), out_bias.clone())


def _curve(x: Tensor, knots: Tensor, slopes: Tensor) -> Tensor:
    """η: continuous, through (knots[0], knots[0]), with one slope below, between and above the knots."""
    segment = torch.searchsorted(knots, x)
    steps = torch.cat([x.new_zeros(1), (slopes[1:-1] * knots.diff()).cumsum(0)])
    at_knot = knots[0] + steps
    left = (segment - 1).clamp(min=0)
    return at_knot[left] + slopes[segment] * (x - knots[left])


def _residual(x: Tensor, weight: Tensor, bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> Tensor:
    """g: one hidden layer on log-probabilities, which are bounded at -20 to stay finite."""
    hidden = torch.tanh(x.clamp(min=-20.0) @ weight.T / 5.0 + bias)
    return hidden @ out_weight.T + out_bias
