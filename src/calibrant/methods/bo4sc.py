"""BO4SC: self-calibration by bilevel optimisation (Sanguin et al. 2024), and more robust variants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from calibrant import bilevel
from calibrant.base.settings import check_choice, shown
from calibrant.data.streams.batch import tensors_of
from calibrant.methods.core.method import Method, SolveSettings, TrainedNetwork, TrainingGroup
from calibrant.methods.core.results import read_outer, variables_of, weights_at
from calibrant.methods.core.task import Task, streams

Weights = Literal["sample", "prior", "neighbours"]
Companion = Literal["l2", "l2-unit", "label-smoothing", "label-noise"]


@dataclass(frozen=True)
class BO4SC(Method):
    """Algorithm 1 of the first paper: learn one weight per training sample so that held-out confidence is right.

    ::

        inner   g(w, θ) = mean_i w_i·CE(ŷ(x_i, θ), y_i)                    Eq. (10), T steps of Adam
        outer   f(w, θ) = mean_j BCE(p̂(x_j, θ), ŷ_j = y_j)                 Eq. (12), Eq. (13), p̂ a smooth maximum
        w ← clip(w − η_w·∇_w f(w, θ^T(w)))                                 Eq. (14), exact, through the T steps

    Choices that the paper does not specify are arguments. The defaults are one setting that works on all five data sets
    of the paper. The reproduction chooses one setting per data set by grid search, as the paper does (the command
    ``python -m studies sweep bo4sc``).

    Parameters
    ----------
    hidden : tuple of int
        Units of the hidden layers, for the default network.
    steps : int
        T, the number of inner steps per outer step. Fig. 3 ("1 epoch unit = 10 training epochs") suggests 10.
    epochs : int, optional
        Passes over the training data. None: 1,200 steps or 20 epochs, whichever is more.
    learning_rate : float
        η_θ, the learning rate of the network.
    outer_learning_rate : float, optional
        η_w, the rate of projected gradient descent with the mean loss of Eq. (10). It must be large, because the
        hypergradient of a weight is of the order 1/n. None: ``1.5·n``.
    alpha : float
        α of the Boltzmann operator, Σ p·softmax(α p). The paper does not state it. Below 30, the operator is clearly
        smaller than the maximum.
    inner : {"adam", "sgd"}
        The inner optimiser. Section 4 of the paper says Adam; Algorithm 1 shows plain gradient descent.
    hypergradient : {"unrolled", "truncated", "implicit"}
        ``"unrolled"`` differentiates exactly through all T steps. ``"truncated"`` differentiates through the last
        ``last`` steps. ``"implicit"`` treats θ^T as a minimum and solves a linear system for how that minimum changes.
    last : int
        The number of steps for ``"truncated"``.
    damping : float
        For ``"implicit"``: added to the eigenvalues of the Hessian. Conjugate gradients stop after 20 products or at
        negative curvature. θ^T is not a minimum, so a more exact solution would not be a better hypergradient.
    outer_loss : {"bce", "nll", "brier", "sece", "dece"}
        Outer objective on held-out data; the paper uses ``"bce"``.
    weights : {"sample", "prior", "neighbours"} or None
        ``"sample"``: one free weight per sample, as published. ``"prior"``: the same with a penalty that pulls weights
        towards 1. ``"neighbours"``: weights smoothed over neighbours with the same label. None: no weights; learn only
        the variables in ``also``.
    prior_strength : float, optional
        Strength of the penalty towards equal weights, for all forms except ``"sample"``. None: 0.01 for ``"prior"``,
        else 0.
    form : {"clip", "sigmoid"}
        How weights stay in [0, 1]. Clipping is inferred from Fig. 3.
    initial_weight : float, optional
        w⁰, which the paper does not state. None: 1 (0.9 for ``"sigmoid"``), so that training starts like standard
        training.
    also : tuple of {"l2", "l2-unit", "label-smoothing", "label-noise"}
        Further outer variables.
    also_learning_rate : float
        Adam's learning rate for the variables in ``also``.
    restart : bool
        Restart every outer step from θ⁰. The paper does not say. Its number of steps is enough only if θ is carried
        over.
    batch_size : int, optional
        Samples per step; None: all rows if there are at most 4,096, else 512.
    keep_history : bool
        Keep the weights of every outer step (``sample_weights_history``), if there are weights.
    """

    hidden: tuple[int, ...] = (64, 64)
    steps: int = 5
    epochs: int | None = None
    learning_rate: float = 0.005
    outer_learning_rate: float | None = None
    alpha: float = 30.0
    inner: Literal["adam", "sgd"] = "adam"
    hypergradient: Literal["unrolled", "truncated", "implicit"] = "unrolled"
    last: int = 2
    damping: float = 0.01
    outer_loss: Literal["bce", "nll", "brier", "sece", "dece"] = "bce"
    weights: Weights | None = "sample"
    prior_strength: float | None = None
    form: Literal["clip", "sigmoid"] = "clip"
    initial_weight: float | None = None
    also: tuple[Companion, ...] = ()
    also_learning_rate: float = 0.05
    restart: bool = False
    batch_size: int | None = None
    keep_history: bool = False

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate", "outer_learning_rate", "alpha", "epochs"})

    def __post_init__(self) -> None:
        if self.weights is None and self.also == ():
            raise ValueError("also must name at least one outer variable if weights is None; got an empty tuple.")
        choices = {
            "inner": ("adam", "sgd"),
            "hypergradient": ("unrolled", "truncated", "implicit"),
            "outer_loss": tuple(bilevel.OUTER_LOSSES),
            "weights": (None, *get_args(Weights)),
        }
        for name, allowed in choices.items():
            check_choice(name, getattr(self, name), allowed)
        self._refuse_idle_settings()
        names = ", ".join(map(repr, _ALSO))
        if not isinstance(self.also, tuple) or any(name not in _ALSO for name in self.also):
            raise ValueError(f"also must be a tuple of some of {names}; got {self.also!r}.")
        if len(set(self.also)) < len(self.also) or {"l2", "l2-unit"} <= set(self.also):
            raise ValueError(f"also must not name a variable twice ('l2-unit' is 'l2' per unit); got {self.also!r}.")
        if self.steps < 1:
            raise ValueError(f"steps, the T of Algorithm 1, must be at least 1; got {self.steps}.")
        if not (isinstance(self.damping, Real) and 0 <= float(self.damping) < math.inf):
            raise ValueError(f"damping must be at least 0 and finite; got {shown(self.damping)}.")

    def _refuse_idle_settings(self) -> None:
        """Raise an error for a setting that has no effect: the user expects one, and a grid over it would waste time.

        A value equal to the default is accepted, because it cannot be distinguished from an omitted one.
        """
        weighted = self.weights is not None
        used = {
            "outer_learning_rate": (weighted, "weights"),
            "initial_weight": (weighted, "weights"),
            "form": (weighted, "weights"),
            "prior_strength": (self.weights not in (None, "sample"), "weights"),
            "alpha": (self.outer_loss == "bce", "outer_loss"),
            "last": (self.hypergradient == "truncated", "hypergradient"),
            "damping": (self.hypergradient == "implicit", "hypergradient"),
            "also_learning_rate": (bool(self.also), "also"),
        }
        for name, (counts, other) in used.items():
            value = getattr(self, name)
            if not counts and value != getattr(BO4SC, name):
                raise ValueError(
                    f"{name} must be left out with {other}={getattr(self, other)!r}, where it has no effect; got "
                    f"{shown(value)}."
                )

    def data(self, task: Task) -> dict[str, Any]:
        return streams(task, self.batch_size, self.constants(task))

    def problem(self, model: nn.Module, task: Task) -> bilevel.Bilevel:
        task.need_val("BO4SC")
        levels = self.data(task) | {"outer_loss": bilevel.OUTER_LOSSES[self.outer_loss]()}
        return bilevel.Bilevel(model, self.outer_variable(model, task), **levels, seed=task.seed)

    def solving(self, group: TrainingGroup) -> SolveSettings:
        return SolveSettings(
            hypergradient=self.differentiation(),
            inner_optimizer=(bilevel.Adam if self.inner == "adam" else bilevel.SGD)(group.each("learning_rate")),
            outer_optimizer=self.outer_optimizer(group),
            steps=group.steps(),
            history=bilevel.History(phi_every=1 if self.keep_history else None),
            settings={"restart": self.restart},
        )

    def rows_at_once(self, task: Task) -> int:
        return self.steps * super().rows_at_once(task)

    def differentiation(self) -> bilevel.Hypergradient:
        """The engine's hypergradient object for these settings."""
        if self.hypergradient == "truncated":
            return bilevel.Truncated(self.steps, min(self.last, self.steps))
        if self.hypergradient == "implicit":
            return bilevel.Implicit(self.steps, solve=bilevel.CG(20, quiet=True), damping=self.damping)
        return bilevel.Unrolled(self.steps)

    def outer_variable(self, model: nn.Module, task: Task) -> bilevel.OuterVariable:
        """φ: the weights first, then the variables in ``also``."""
        parts: list[bilevel.OuterVariable] = []
        if self.weights is not None:
            kind = bilevel.SmoothedWeights if self.weights == "neighbours" else bilevel.SampleWeights
            strength = 0.01 if self.weights == "prior" and self.prior_strength is None else self.prior_strength or 0.0
            settings: dict[str, Any] = {"form": self.form, "initial_weight": self.initial_weight}
            parts.append(kind(len(task.train), prior_strength=strength, **settings))
        parts += [_ALSO[name](model, task) for name in self.also]
        return parts[0] if len(parts) == 1 else bilevel.OuterVariables(*parts)

    def outer_optimizer(self, group: TrainingGroup) -> bilevel.Optimizer:
        """Gradient descent for the weights, Adam for everything else."""
        parts = variables_of(group.problems[0].variables)
        sizes = [sum(p.numel() for p in part.parameters()) for part in parts]
        adam = bilevel.Adam(self.also_learning_rate)
        optimizers = [_descent(group) if isinstance(part, bilevel.SampleWeights) else adam for part in parts]
        groups = list(zip(sizes, optimizers, strict=True))
        return groups[0][1] if len(groups) == 1 else bilevel.GroupedOptimizer(parts=tuple(groups))

    def constants(self, task: Task) -> dict[str, Tensor]:
        """Constants for the losses: α, and the neighbourhood used to smooth weights."""
        device = tensors_of(task.train.inputs)[0].device
        constants = {"alpha": torch.tensor(float(self.alpha), device=device)} if self.outer_loss == "bce" else {}
        if self.weights != "neighbours":
            return constants
        inputs = task.train.inputs
        if task.train.loaded or not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
            raise ValueError(
                "weights='neighbours' needs all training inputs in memory, as one tensor of numbers. Use another form "
                "of weights for a loader and for inputs of other kinds."
            )
        return constants | bilevel.neighbourhood(inputs.flatten(1), task.train.labels)

    def learned(self, outcome: TrainedNetwork) -> dict[str, Any]:
        """The weights, their history, and the other outer variables by name."""
        solution = outcome.solution
        learned: dict[str, Any] = {"history": {name: rows for name, rows in outcome.history.items() if name != "phi"}}
        if self.weights is not None:
            learned["sample_weights"] = weights_at(solution.phi, solution)
        if self.weights is not None and self.keep_history:
            phis = outcome.history["phi"]
            learned["sample_weights_history"] = torch.stack([weights_at(p, solution) for p in phis])
        with torch.no_grad():
            return learned | solution.problem.outer_view.run(solution.phi, read_outer)


def _descent(group: TrainingGroup) -> bilevel.SGD:
    """Projected gradient descent for the sample weights, with a default rate proportional to their number."""
    rate = group.each(lambda m, t: 1.5 * len(t.train) if m.outer_learning_rate is None else m.outer_learning_rate)
    return bilevel.SGD(rate)


_ALSO: dict[Companion, Callable[[nn.Module, Task], bilevel.OuterVariable]] = {
    "l2": lambda model, task: bilevel.L2(model),
    "l2-unit": lambda model, task: bilevel.L2(model, per="unit"),
    "label-smoothing": lambda model, task: bilevel.LabelSmoothing(task.n_classes, per="class"),
    "label-noise": lambda model, task: bilevel.LabelNoise(task.n_classes),
}
