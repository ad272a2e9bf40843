"""Ordinary training, the baselines that are a loss away from it, and the step that they share with bilevel methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.bilevel import (
    Adam,
    Bilevel,
    Callback,
    EarlyStopping,
    Hypergradient,
    Optimizer,
    OuterVariable,
    Plain,
    Population,
    Solution,
    composed,
    solve,
)
from calibrant.bilevel.problem import UserLoss
from calibrant.data.streams import mix
from calibrant.losses.classification import cross_entropy, focal, smoothed_cross_entropy
from calibrant.methods.base import Method, stacked
from calibrant.methods.task import Fitted, Mixture, Task, batch_size, total_steps
from calibrant.models.mlp import mlp

CHECK_EVERY = 5
"""Steps between two looks at the validation loss."""


@dataclass(frozen=True)
class Standard(Method):
    """One network, one loss, Adam: "the standard training procedure" of the first paper.

    Parameters
    ----------
    hidden : units of the hidden layers
    epochs : passes over the training data; None chooses (1,200 of the full batch, or 20 of mini-batches)
    learning_rate : Adam's
    batch_size : None is the full batch up to 4,096 rows and 512 above
    activation : of the hidden units, "relu", "silu" or "tanh"
    patience : stop when the validation loss has not improved for so many steps, and return to its best. A step is an
        epoch of the full batch; with mini-batches it is at least five epochs. None: train to the end
    smoothing : label smoothing ε
    gamma : focal loss with this γ
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    epochs: int | None = 1200
    learning_rate: float = 0.02
    batch_size: int | None = None
    patience: int | None = None
    smoothing: float = 0.0
    gamma: float = 0.0

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate", "epochs"})

    @classmethod
    def fit_group(
        cls, methods: Sequence[Standard], tasks: Sequence[Task], callbacks: Sequence[Callback] = ()
    ) -> list[Fitted]:
        first = methods[0]
        if first.patience is not None:
            callbacks = [*callbacks, first.stopping(tasks[0])]
        problems = problems_for(
            tasks,
            hidden=first.hidden,
            activation=first.activation,
            size=first.batch_size,
            inner_loss=first.inner_loss(),
            val=first.patience is not None,
        )
        steps = [
            total_steps(len(t.train), m.epochs, batch_size(len(t.train), m.batch_size), 1200)
            for m, t in zip(methods, tasks, strict=True)
        ]
        solutions = run(
            problems,
            hypergradient=Plain(CHECK_EVERY),
            inner_optimizer=Adam(stacked([m.learning_rate for m in methods])),
            steps=steps,
            callbacks=callbacks,
        )
        return [Mixture((solution,), failure=failure(solution)) for solution in solutions]

    def inner_loss(self) -> UserLoss:
        """The training loss; the same object for equal settings."""
        return training_loss(self.smoothing, self.gamma)

    def stopping(self, task: Task) -> EarlyStopping:
        """Return to the best validation loss."""
        size = batch_size(len(task.train), self.batch_size)
        assert self.patience is not None
        steps = self.patience if size is None else max(self.patience, 5 * -(-len(task.train) // size))
        return EarlyStopping(patience=-(-steps // CHECK_EVERY))


@cache
def training_loss(smoothing: float = 0.0, gamma: float = 0.0) -> UserLoss:
    """Cross-entropy, its smoothed form, or the focal loss, with the outer variables' hooks."""
    if smoothing and gamma:
        raise ValueError(
            f"Label smoothing and the focal loss exclude each other here; got smoothing={smoothing}, gamma={gamma}."
        )
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    if smoothing:
        loss = partial(smoothed_cross_entropy, epsilon=smoothing)
    elif gamma:
        loss = partial(focal, gamma=gamma)
    return composed(loss)


def problems_for(
    tasks: Sequence[Task],
    *,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    size: int | None = None,
    outer: Callable[[nn.Module, Task], OuterVariable | None] | None = None,
    inner_loss: UserLoss | None = None,
    outer_loss: UserLoss | None = None,
    hyper: Sequence[dict[str, Tensor]] | None = None,
    val: bool = True,
) -> list[Bilevel]:
    """One problem a task, on the first paper's network; all but the first are replicas."""
    problems: list[Bilevel] = []
    for position, task in enumerate(tasks):
        own = hyper[position] if hyper else {}
        train = task.train.stream(batch_size=batch_size(len(task.train), size), seed=mix(task.seed, 10), hyper=own)
        held_out = (
            task.need_val("Validation").stream(
                batch_size=batch_size(len(task.val or ())), seed=mix(task.seed, 11), hyper=own
            )
            if val
            else None
        )
        if problems:
            problems.append(
                problems[0].replicate(problems[0].view.draw(task.seed), train=train, val=held_out, seed=task.seed)
            )
            continue
        model = mlp(task.train.inputs.shape[1], task.classes, hidden=hidden, activation=activation, seed=task.seed).to(
            task.train.inputs
        )
        problems.append(
            Bilevel(
                model,
                outer(model, task) if outer else None,
                train=train,
                val=held_out,
                inner_loss=inner_loss,
                outer_loss=outer_loss,
                seed=task.seed,
            )
        )
    return problems


def run(
    problems: Sequence[Bilevel],
    *,
    hypergradient: Hypergradient,
    inner_optimizer: Optimizer,
    outer_optimizer: Optimizer | None = None,
    steps: Sequence[int],
    callbacks: Sequence[Callback] = (),
    tied: Sequence[int] | None = None,
    **settings: Any,
) -> list[Solution]:
    """Solve one problem alone, several as a population. A single one that fails raises; a member says so itself."""
    rounds = [-(-s // hypergradient.steps) for s in steps]
    alone = len(problems) == 1
    solution = solve(
        problems[0] if alone else Population(problems, tied=tied),
        hypergradient=hypergradient,
        inner_optimizer=inner_optimizer,
        outer_optimizer=outer_optimizer,
        outer_steps=rounds[0] if len(set(rounds)) == 1 else torch.tensor(rounds),
        callbacks=callbacks,
        compile="trace",
        **settings,
    )
    return [solution] if alone else [solution.member(k) for k in range(len(problems))]


def failure(*solutions: Solution) -> str | None:
    """Why a run failed, if one did."""
    return next((reason for solution in solutions for reason in solution.failures.values()), None)
