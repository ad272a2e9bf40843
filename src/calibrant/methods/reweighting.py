"""Training labels of which many are wrong: a weight for each sample, moved by a small part with clean labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.bilevel import Adam, Bilevel, Hypergradient, Implicit, OneStep, SampleWeights
from calibrant.methods.base import Group, Outcome, Solving
from calibrant.methods.networks import STRIDE, NetworkTraining
from calibrant.methods.task import Part, Task

SOLVED_HEAD = Implicit(STRIDE, "head")
NEXT_STEP = OneStep(1, "head", learning_rate=1.0)


@dataclass(frozen=True)
class Reweighting(NetworkTraining):
    """Cross-entropy with one weight for each training sample, learned while the network is trained.

    ::

        inner   mean_i w_i·CE(f(x_i, θ), y_i)          labels y_i that may be wrong
        outer   mean_j CE(f(x_j, θ(w)), y_j)           clean labels

    A sample whose gradient agrees with that of the clean samples keeps its weight, and one that points the other way
    loses it. The weights stay from epoch to epoch: what was learned before the network knew its labels by heart is not
    lost. Only the last layer depends on w in the outer problem, so that an outer step costs little more than a pass of
    the clean batch through the network.

    ``hypergradient=SOLVED_HEAD`` takes that layer as solved on the features of recent batches (influence functions, Koh
    & Liang 2017). ``NEXT_STEP`` looks one step of descent ahead before every training step, in the manner of "learning
    to reweight" (Ren et al. 2018), which forgets its weights after each step.

    Parameters
    ----------
    hypergradient : Hypergradient
        How dF/dw is computed.
    meta_rate : float
        Adam's learning rate of the weights. A sample takes part in one or two outer steps of an epoch, which move its
        weight by about ten times this rate.
    meta_batch : int
        Clean samples of one outer step.
    start : float
        The share of the run after which weights move: before, the head says little about single samples.
    """

    hypergradient: Hypergradient = SOLVED_HEAD
    meta_rate: float = 0.05
    meta_batch: int = 256
    start: float = 0.1

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        return self.pose(model, task, SampleWeights(len(task.train)))

    def solving(self, group: Group) -> Solving:
        return self.solve_by(
            group,
            hypergradient=self.hypergradient,
            outer_optimizer=Adam(self.meta_rate),
            settings={"start": self.start},
        )

    def held_out(self, task: Task) -> Part:
        return task.need_val("A weight for each sample") if task.meta is None else task.meta

    def held_out_batch(self) -> int:
        return self.meta_batch

    def learned(self, outcome: Outcome) -> dict[str, Any]:
        return super().learned(outcome) | {"sample_weights": weights_of(outcome)}


def weights_of(outcome: Outcome) -> Tensor:
    """The weights at the end, in the order of the training samples, on the CPU."""
    solution = outcome.solution
    with torch.no_grad():
        return solution.problem.outer_view.run(solution.phi, lambda outer: outer.weights()).cpu()
