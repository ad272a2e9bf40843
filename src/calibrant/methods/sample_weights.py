"""Sample weights that are learned: from a small network, or one per sample for training with many wrong labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.bilevel import (
    Adam,
    Bilevel,
    Hypergradient,
    Implicit,
    OneStep,
    SampleWeights,
    Unrolled,
    WeightNetwork,
    variance_loss,
)
from calibrant.methods.core.method import Method, SolveSettings, TrainedNetwork, TrainingGroup
from calibrant.methods.core.results import weights_at
from calibrant.methods.core.samples import Samples, entries
from calibrant.methods.core.task import Task
from calibrant.methods.image_networks import STRIDE, NetworkTraining, check_meta


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

    def solving(self, group: TrainingGroup) -> SolveSettings:
        return SolveSettings(
            hypergradient=Unrolled(self.steps),
            inner_optimizer=Adam(group.each("learning_rate")),
            outer_optimizer=Adam(self.outer_learning_rate),
            steps=group.steps(),
        )

    def learned(self, outcome: TrainedNetwork) -> dict[str, Any]:
        return {"sample_weights": weights_at(outcome.solution.phi, outcome.solution)}

    def rows_at_once(self, task: Task) -> int:
        return self.steps * super().rows_at_once(task)


SOLVED_HEAD = Implicit(STRIDE, "head")
NEXT_STEP = OneStep(1, "head", learning_rate=1.0)


@dataclass(frozen=True)
class Reweighting(NetworkTraining):
    """Cross-entropy with one weight per training sample, learned while the network is trained.

    ::

        inner   mean_i w_i·CE(f(x_i, θ), y_i)          labels y_i that may be wrong
        outer   mean_j CE(f(x_j, θ(w)), y_j)           clean labels

    A sample keeps its weight if its gradient agrees with that of the clean samples, and loses it if the gradient points
    the other way. The weights are kept between epochs, so that what they learned before the network memorised its
    labels is not lost. In the outer problem, only the last layer depends on w. An outer step therefore costs little
    more than a forward pass of the clean batch.

    ``hypergradient=SOLVED_HEAD`` treats that layer as solved to optimality on the features of recent batches (influence
    functions, Koh & Liang 2017). ``NEXT_STEP`` differentiates through one step of gradient descent before every
    training step, similar to "learning to reweight" (Ren et al. 2018), which discards its weights after each step.

    Parameters
    ----------
    hypergradient : Hypergradient
        How dF/dw is computed.
    outer_learning_rate : float
        Adam's learning rate for the weights. A sample takes part in one or two outer steps per epoch, which change its
        weight by about ten times this rate.
    outer_batch_size : int
        Clean samples per outer step.
    start : float
        The share of the run after which weights are updated. Earlier, the head carries little information about single
        samples.
    """

    hypergradient: Hypergradient = SOLVED_HEAD
    outer_learning_rate: float = 0.05
    outer_batch_size: int = 256
    start: float = 0.1

    def __post_init__(self) -> None:
        check_meta(self.outer_learning_rate, self.outer_batch_size, self.start)

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        return self.pose(model, task, SampleWeights(len(task.train)))

    def solving(self, group: TrainingGroup) -> SolveSettings:
        return self.solve_by(
            group,
            hypergradient=self.hypergradient,
            outer_optimizer=Adam(self.outer_learning_rate),
            settings={"start": self.start},
        )

    def held_out(self, task: Task) -> Samples:
        return task.need_meta("A weight for each sample")

    def held_out_batch(self) -> int:
        return self.outer_batch_size

    def learned(self, outcome: TrainedNetwork) -> dict[str, Any]:
        return super().learned(outcome) | {"sample_weights": weights_of(outcome)}


def weights_of(outcome: TrainedNetwork) -> Tensor:
    """The final weights, in the order of the training samples, on the CPU."""
    solution = outcome.solution
    with torch.no_grad():
        return solution.problem.outer_view.run(solution.phi, lambda outer: outer.weights()).cpu()
