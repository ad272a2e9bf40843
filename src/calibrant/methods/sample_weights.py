"""One learned weight per training sample, for training with many wrong labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from calibrant.bilevel import Hypergradient, Implicit, OneStep, SampleWeights
from calibrant.methods.core.method import TrainedNetwork
from calibrant.methods.core.results import weights_at
from calibrant.methods.core.task import Task
from calibrant.methods.image_networks import STRIDE, HeldOutTraining

SOLVED_HEAD = Implicit(STRIDE, "head")
NEXT_STEP = OneStep(1, "head", learning_rate=1.0)


@dataclass(frozen=True)
class Reweighting(HeldOutTraining):
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

    held_out_for: ClassVar[str] = "A weight for each sample"

    def variable(self, model: nn.Module, task: Task) -> SampleWeights:
        return SampleWeights(len(task.train))

    def learned(self, outcome: TrainedNetwork) -> dict[str, Any]:
        return super().learned(outcome) | {"sample_weights": weights_at(outcome.solution.phi, outcome.solution)}
