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
from calibrant.bilevel.tracing import Compiler
from calibrant.losses.classification import cross_entropy, focal, smoothed_cross_entropy
from calibrant.methods.base import Method, stacked
from calibrant.methods.task import Fitted, Mixture, Task, streams, total_steps
from calibrant.models.mlp import mlp

CHECK_EVERY = 5
"""Steps between two looks at the validation loss."""


@dataclass(frozen=True)
class Standard(Method):
    """One network, one loss, Adam: "the standard training procedure" of the first paper.

    Parameters
    ----------
    hidden : units of the hidden layers
    epochs : passes over the training data; None chooses (1,200 steps, or 20 epochs where those are more)
    learning_rate : Adam's
    batch_size : None is the full batch up to 4,096 rows and 512 above
    activation : of the hidden units, "relu", "silu" or "tanh"
    patience : stop when the validation loss has not improved for so many steps, and return to its best. A step is an
        epoch of the full batch; with mini-batches, a loader's too, it is at least five epochs. None: train to the end
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
        problems = problems_for(
            tasks,
            hidden=first.hidden,
            activation=first.activation,
            size=first.batch_size,
            inner_loss=first.inner_loss(),
            val=first.patience is not None,
        )
        solutions = cls.fit_problems(methods, problems, callbacks)
        return [Mixture((solution,), failure=failure(solution)) for solution in solutions]

    @staticmethod
    def fit_problems(
        methods: Sequence[Standard],
        problems: Sequence[Bilevel],
        callbacks: Sequence[Callback] = (),
        compile: Compiler | None = "trace",
    ) -> list[Solution]:
        """Train networks that are there already, one a method."""
        first = methods[0]
        if first.patience is not None:
            callbacks = [*callbacks, first.stopping(problems[0].train.batches)]
        return run(
            problems,
            hypergradient=Plain(CHECK_EVERY),
            inner_optimizer=Adam(stacked([m.learning_rate for m in methods])),
            steps=inner_steps(methods, problems),
            callbacks=callbacks,
            compile=compile,
        )

    def inner_loss(self) -> UserLoss:
        """The training loss; the same object for equal settings."""
        return training_loss(self.smoothing, self.gamma)

    def stopping(self, per_epoch: int) -> EarlyStopping:
        """Return to the best validation loss. An epoch has ``per_epoch`` steps."""
        assert self.patience is not None
        steps = self.patience if per_epoch == 1 else max(self.patience, 5 * per_epoch)
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
    dropout: float = 0.0,
    size: int | None = None,
    outer: Callable[[nn.Module, Task], OuterVariable | None] | None = None,
    inner_loss: UserLoss | None = None,
    outer_loss: UserLoss | None = None,
    hyper: Sequence[dict[str, Tensor]] | None = None,
    val: bool = True,
) -> list[Bilevel]:
    """One problem a task, on the first paper's network; all but the first are replicas.

    With ``dropout`` the outer loss sees it too, each time with masks of its own.
    """
    if val:
        for task in tasks:
            task.need_val("Validation")
    data = [streams(task, size, hyper[k] if hyper else None, val=val) for k, task in enumerate(tasks)]
    first, inputs = tasks[0], tasks[0].train.inputs
    shape: dict[str, Any] = {"hidden": hidden, "activation": activation, "dropout": dropout}
    model = mlp(inputs.shape[1], first.classes, **shape, seed=first.seed).to(inputs)
    problem = Bilevel(
        model,
        outer(model, first) if outer else None,
        **data[0],
        inner_loss=inner_loss,
        outer_loss=outer_loss,
        outer_mode="train" if dropout else "eval",
        seed=first.seed,
    )
    return [problem, *replicas(problem, [task.seed for task in tasks[1:]], data[1:])]


def replicas(problem: Bilevel, seeds: Sequence[int], data: Sequence[dict[str, Any]]) -> list[Bilevel]:
    """Problems of the same kind, each with the start that its seed draws and with its own data."""
    return [problem.replicate(problem.view.draw(seed), **own, seed=seed) for seed, own in zip(seeds, data, strict=True)]


def inner_steps(methods: Sequence[Any], problems: Sequence[Bilevel]) -> list[int]:
    """How long each is trained: for its ``epochs``; None is 1,200 steps, or 20 epochs where those are more.

    An epoch is as many steps as its stream has batches, those of a loader or of tensors.
    """
    return [total_steps(p.train.batches, m.epochs, 1, 1200) for m, p in zip(methods, problems, strict=True)]


def run(
    problems: Sequence[Bilevel],
    *,
    hypergradient: Hypergradient,
    inner_optimizer: Optimizer,
    outer_optimizer: Optimizer | None = None,
    steps: Sequence[int],
    callbacks: Sequence[Callback] = (),
    tied: Sequence[int] | None = None,
    compile: Compiler | None = "trace",
    **settings: Any,
) -> list[Solution]:
    """Solve one problem alone, several as a population.

    A single one that fails raises, a member says so itself; ``Method.fit`` and ``fit_all`` make one of both.
    """
    rounds = [-(-s // hypergradient.steps) for s in steps]
    alone = len(problems) == 1
    solution = solve(
        problems[0] if alone else Population(problems, tied=tied),
        hypergradient=hypergradient,
        inner_optimizer=inner_optimizer,
        outer_optimizer=outer_optimizer,
        outer_steps=rounds[0] if len(set(rounds)) == 1 else torch.tensor(rounds),
        callbacks=callbacks,
        compile=compile,
        **settings,
    )
    return [solution] if alone else [solution.member(k) for k in range(len(problems))]


def failure(*solutions: Solution) -> str | None:
    """Why a run failed, if one did."""
    return next((reason for solution in solutions for reason in solution.failures.values()), None)
