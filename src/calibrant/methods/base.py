"""The interface of methods: a method declares a problem, how to solve it and what to keep.

A method defines its problem for a model and a task (``problem``), how to solve it (``solving``) and what to keep
(``result``). :mod:`calibrant.methods.adapter` does the rest for any model, alone or as a population.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.bilevel import Bilevel, Callback, NonFiniteError, Solution
from calibrant.methods.adapter import Compile, Group, Outcome, Solving, solve_group
from calibrant.methods.fitted import Fitted, Mixture
from calibrant.methods.task import Task, streams
from calibrant.models.architectures.mlp import mlp


@dataclass(frozen=True)
class Method:
    """A way to train a calibrated classifier. Its fields are its settings.

    Most methods define only ``problem`` and ``solving``. A method built from other methods (an ensemble, a network
    followed by a calibrator) defines ``fit_group`` by calling theirs.
    """

    varying: ClassVar[frozenset[str]] = frozenset()
    """Numeric fields that may differ between members of one population."""
    tied: ClassVar[bool] = False
    """Whether the networks of one task (``parts``) share one φ."""
    one_by_one: ClassVar[bool] = False
    """Whether the tasks of a group are trained one after another, because one network uses the whole machine."""

    def parts(self, task: Task) -> Sequence[Task]:
        """One task for each network that is trained; one network by default."""
        return [task]

    def data(self, task: Task) -> dict[str, Any]:
        """The data streams of both levels, ``train`` and ``val``, with the constants that the losses use."""
        return streams(task, getattr(self, "batch_size", None))

    def network(self, task: Task) -> nn.Module:
        """The default model for tasks without one: the perceptron of the first paper."""
        names = ("hidden", "activation", "dropout")
        settings = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return perceptron(task, **settings)

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        """The bilevel problem: outer variables, losses, and ``**self.data(task)``."""
        raise NotImplementedError(f"{type(self).__name__} must define problem(model, task); got none.")

    def solving(self, group: Group) -> Solving:
        """How to solve the problems of a group. The methods of a group differ only in ``varying`` fields."""
        raise NotImplementedError(f"{type(self).__name__} must define solving(group); got none.")

    def result(self, task: Task, outcomes: Sequence[Outcome]) -> Fitted:
        """The classifier built from the trained networks of one task."""
        solutions = tuple(outcome.solution for outcome in outcomes)
        return Mixture(solutions, extras=self.learned(outcomes[0]), failure=failure(*solutions))

    def learned(self, outcome: Outcome) -> dict[str, Any]:
        """What to keep besides the network; it becomes ``extras`` of the result."""
        return {}

    def rows_at_once(self, task: Task) -> int:
        """Rows whose activations one fit holds in memory at once; this determines its memory use."""
        return task.train.batch_size(getattr(self, "batch_size", None)) or len(task.train)

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[Any],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        """Train methods that differ only in ``varying`` fields, each on its task, as one population.

        If one of several networks diverges, its result has a ``failure``. If a single network diverges, a
        NonFiniteError is raised. ``fit`` always raises, and ``fit_all`` never does.
        """
        if cls.one_by_one and len(methods) > 1:
            each = zip(methods, tasks, strict=True)
            return [fitted for m, t in each for fitted in cls.fit_group([m], [t], callbacks, compile)]
        found = solve_group(methods, tasks, callbacks, compile)
        return [m.result(t, own) for m, t, own in zip(methods, tasks, found, strict=True)]

    def structure(self) -> tuple[Any, ...]:
        """Everything that must be equal for all members of one population."""
        fields = [f.name for f in dataclasses.fields(self) if f.name not in self.varying]
        return type(self), *(getattr(self, name) for name in fields)

    def fit(self, task: Task, *, callbacks: Sequence[Callback] = (), compile: Compile = "auto") -> Fitted:
        """Train on one task. If training diverges, raise a :class:`calibrant.bilevel.NonFiniteError`."""
        (fitted,) = self.fit_group([self], [task], callbacks, compile)
        if fitted.failure:
            raise NonFiniteError(fitted.failure)
        return fitted


def perceptron(task: Task, **settings: Any) -> nn.Module:
    """The network of the first paper for a task's inputs, initialised with the task's seed."""
    inputs = task.train.inputs
    if not isinstance(inputs, Tensor) or inputs.dim() != 2 or not inputs.is_floating_point():
        got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(
            f"The default network takes rows of numbers, (samples, features); got inputs of {got}. Pass your own "
            "model: Task(..., model=…) or calibrant.fit(model, …)."
        )
    with torch.device("cpu"):  # the same parameters on all devices, also under torch.set_default_device
        network = mlp(inputs.shape[1], task.n_classes, **settings, seed=task.seed)
    return network.to(inputs)


def failure(*solutions: Solution) -> str | None:
    """The reason of the first failed run, or None."""
    return next((reason for solution in solutions for reason in solution.failures.values()), None)
