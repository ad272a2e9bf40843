"""Instance weights from a network that reduce dropout variance: a bilevel method that preceded BO4SC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from calibrant.bilevel import Adam, Bilevel, Unrolled, WeightNetwork, variance_loss
from calibrant.methods.adapter import Group, Outcome, Solving
from calibrant.methods.base import Method
from calibrant.methods.learned import weights_at
from calibrant.methods.part import entries
from calibrant.methods.task import Task


@dataclass(frozen=True)
class InstanceWeights(Method):
    """Weights as a function of the input, for accurate and stable held-out predictions, after Jain & Shenoy (2022).

    ::

        inner   mean_i g(x_i)·CE(f(x_i, θ), y_i)                           dropout in f, g a small network
        outer   mean_j CE(f(x_j, θ), y_j) + strength·Var_dropout[p(x_j)]   over ``draws`` passes

    This follows the abstract of "Selective classification using a robust meta-learning approach", arXiv:2212.05987:
    instance-conditioned weights, and a meta-objective that reduces dropout variance, in a bilevel framework. The
    details are our choice: the sum of the two outer terms, the variance of probabilities, and all settings below. The
    network is that of the other methods, and the hypergradient is exact. Confidence is the largest probability, as for
    all methods here; the paper also ranks samples by g.

    Parameters
    ----------
    hidden : tuple of int
        Units of the hidden layers, for the default network.
    dropout : float
        Dropout rate of the default network; your own model needs ``nn.Dropout`` layers.
    draws, strength : int and float
        Number of passes for the variance, and its weight relative to the cross-entropy.
    steps : int
        Inner steps per outer step.
    epochs : int, optional
        Passes over the training data; None: as in :class:`BO4SC`.
    learning_rate, outer_learning_rate : float
        Adam's learning rates for the network and for g.
    batch_size : int, optional
        Samples per step; None: all rows if there are at most 4,096, else 512.
    """

    hidden: tuple[int, ...] = (64, 64)
    dropout: float = 0.5
    draws: int = 5
    strength: float = 1.0
    steps: int = 5
    epochs: int | None = None
    learning_rate: float = 0.005
    outer_learning_rate: float = 0.05
    batch_size: int | None = None

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate", "epochs"})

    def __post_init__(self) -> None:
        if not 0 < self.dropout < 1:
            raise ValueError(
                f"dropout must lie strictly between 0 and 1, so that predictions vary; got {self.dropout}."
            )
        variance_loss(strength=self.strength, draws=self.draws)

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        task.need_val("InstanceWeights")
        problem = Bilevel(
            model,
            WeightNetwork(entries(task.train, "InstanceWeights"), task.n_classes, labels=False),
            **self.data(task),
            outer_loss=variance_loss(strength=self.strength, draws=self.draws),
            outer_mode="train",  # the outer loss uses dropout too, with new masks each time
            seed=task.seed,
        )
        if not (problem.view.dropouts or problem.stochastic):
            raise ValueError("InstanceWeights needs a model with dropout; got none. Add nn.Dropout layers.")
        return problem

    def solving(self, group: Group) -> Solving:
        return Solving(
            hypergradient=Unrolled(self.steps),
            inner_optimizer=Adam(group.each("learning_rate")),
            outer_optimizer=Adam(self.outer_learning_rate),
            steps=group.steps(),
        )

    def learned(self, outcome: Outcome) -> dict[str, Any]:
        return {"sample_weights": weights_at(outcome.solution.phi, outcome.solution)}

    def rows_at_once(self, task: Task) -> int:
        return self.steps * super().rows_at_once(task)
