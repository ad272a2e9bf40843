"""The bilevel method for confidence before BO4SC: instance weights from a network, for less dropout variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from calibrant.bilevel import Adam, Callback, Unrolled, WeightNetwork, variance_loss
from calibrant.methods.base import Method, stacked
from calibrant.methods.bo4sc import weights_at
from calibrant.methods.standard import failure, inner_steps, problems_for, run
from calibrant.methods.task import Fitted, Mixture, Task


@dataclass(frozen=True)
class InstanceWeights(Method):
    """Weights as a function of the input, for right and steady held-out predictions, after Jain & Shenoy (2022).

    ::

        inner   mean_i g(x_i)·CE(f(x_i, θ), y_i)                           dropout in f, g a small network
        outer   mean_j CE(f(x_j, θ), y_j) + strength·Var_dropout[p(x_j)]   over ``draws`` passes

    After "Selective classification using a robust meta-learning approach", arXiv:2212.05987, by its abstract: weights
    conditioned on the instance, and a meta-objective of least dropout variance in a bilevel framework. How these are
    put together is our choice (the sum of the two outer terms, the variance of probabilities, all settings below), on
    the network of the other methods and with the exact hypergradient. Confidence is the largest probability, as
    everywhere here; the paper also ranks samples by g.

    Parameters
    ----------
    dropout : share of hidden units left out
    draws, strength : passes that the variance is taken over, and what it counts beside the cross-entropy
    steps : inner steps to one outer step
    epochs : passes over the training data; None chooses, as in :class:`BO4SC`
    outer_rate : Adam's, of g
    """

    hidden: tuple[int, ...] = (64, 64)
    dropout: float = 0.5
    draws: int = 5
    strength: float = 1.0
    steps: int = 5
    epochs: int | None = None
    learning_rate: float = 0.005
    outer_rate: float = 0.05
    batch_size: int | None = None

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate", "epochs"})

    def __post_init__(self) -> None:
        if not 0 < self.dropout < 1:
            raise ValueError(
                f"dropout must lie strictly between 0 and 1: without it nothing varies; got {self.dropout}."
            )
        variance_loss(strength=self.strength, draws=self.draws)

    @classmethod
    def fit_group(
        cls, methods: Sequence[InstanceWeights], tasks: Sequence[Task], callbacks: Sequence[Callback] = ()
    ) -> list[Fitted]:
        first = methods[0]
        problems = problems_for(
            tasks,
            hidden=first.hidden,
            dropout=first.dropout,
            size=first.batch_size,
            outer=lambda model, task: WeightNetwork(task.train.inputs.shape[1], task.classes, labels=False),
            outer_loss=variance_loss(strength=first.strength, draws=first.draws),
        )
        solutions = run(
            problems,
            hypergradient=Unrolled(first.steps),
            inner_optimizer=Adam(stacked([m.learning_rate for m in methods])),
            outer_optimizer=Adam(first.outer_rate),
            steps=inner_steps(methods, problems),
            callbacks=callbacks,
        )
        return [
            Mixture(
                (solution,), extras={"sample_weights": weights_at(solution.phi, solution)}, failure=failure(solution)
            )
            for solution in solutions
        ]

    def rows_at_once(self, task: Task) -> int:
        return self.steps * super().rows_at_once(task)
