"""Train the problems of methods with the engine: one function for any method, model and number of networks.

A method declares a problem and how to solve it (:mod:`calibrant.methods.base`). :func:`solve_group` builds the
problems, solves them alone or as a population, and returns one outcome for each network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from calibrant._jobs import map_jobs
from calibrant.bilevel import (
    Bilevel,
    Callback,
    History,
    Hypergradient,
    Optimizer,
    Population,
    Solution,
    solve,
)
from calibrant.bilevel.compiled import Compiler
from calibrant.bilevel.problem.population import why_not_vectorised
from calibrant.data.batch import tensors_of
from calibrant.methods.task import Task, even, total_steps
from calibrant.models.functional.user_modules import unwrapped

if TYPE_CHECKING:
    from calibrant.methods.base import Method

Compile = Compiler | Literal["auto"] | None


@dataclass(frozen=True)
class Group:
    """Networks that are trained together, each with its own method, task and problem."""

    methods: Sequence[Any]
    tasks: Sequence[Task]
    problems: Sequence[Bilevel]

    def each(self, value: str | Callable[[Any, Task], float]) -> float | Tensor:
        """A setting by name, or a function of method and task: one number if all are equal, else one per network."""
        pairs = zip(self.methods, self.tasks, strict=True)
        values = [getattr(m, value) if isinstance(value, str) else value(m, t) for m, t in pairs]
        return values[0] if len(set(values)) == 1 else torch.tensor(values, device="cpu")

    def steps(
        self, epochs: Callable[[Any], int | None] | None = None, default: int = 1200, passes: int = 20
    ) -> list[int]:
        """Training steps of each network, from its ``epochs``.

        If ``epochs`` is None, this is ``default`` steps or ``passes`` epochs, whichever is more.
        An epoch has as many steps as the training stream has batches.
        """
        wanted = epochs or (lambda method: method.epochs)
        pairs = zip(self.methods, self.problems, strict=True)
        return [total_steps(p.train.batches, wanted(m), 1, default, passes) for m, p in pairs]


@dataclass(frozen=True)
class Solving:
    """How to solve the problems of a group: the arguments of :func:`calibrant.bilevel.solve`."""

    hypergradient: Hypergradient
    inner_optimizer: Optimizer
    steps: Sequence[int]
    """Training steps of each network; :meth:`Group.steps` counts them in epochs."""
    outer_optimizer: Optimizer | None = None
    callbacks: Sequence[Callback] = ()
    """Early stopping, a moving average of the weights, …"""
    history: History | None = None
    """Records every outer step; each network's :class:`Outcome` has its own rows."""
    compile: Compile = "auto"
    """As in ``solve``. ``"auto"`` traces the method's default perceptron and runs other modules eagerly."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further arguments of ``solve``: ``restart``, ``clip_norm``, …"""


@dataclass(frozen=True)
class Outcome:
    """One trained network."""

    task: Task
    solution: Solution
    history: dict[str, Tensor] = field(default_factory=dict)
    """This network's rows of ``Solving.history``, by name."""


def solve_group(
    methods: Sequence[Method], tasks: Sequence[Task], callbacks: Sequence[Callback] = (), compile: Compile = "auto"
) -> list[list[Outcome]]:
    """Train the networks of every method and task, and return the outcomes of each task in order.

    Networks are trained as one population if that is possible and faster, and otherwise one by one (see
    :func:`needs_single_runs`). Networks that share φ are always trained as one population.
    """
    parts = [list(m.parts(t)) for m, t in zip(methods, tasks, strict=True)]
    each = [m for m, own in zip(methods, parts, strict=True) for _ in own]
    flat = even([task for own in parts for task in own])
    first = methods[0]
    group = Group(each, flat, build(each, flat))
    tied = [k for k, own in enumerate(parts) for _ in own] if first.tied else None
    if tied and len(flat) > 1 and flat[0].model is not None and (reason := why_not_vectorised(group.problems)):
        raise ValueError(
            "This method trains its networks together under torch.func.vmap, which the model does not support: "
            f"{reason.rstrip(' .')}. Use another method, such as the default."
        )
    if len(flat) > 1 and tied is None and needs_single_runs(group):
        singles = [Group([m], [t], [p]) for m, t, p in zip(each, flat, group.problems, strict=True)]
        found = [one for (one,) in map_jobs(_solve, [(g, None, callbacks, compile) for g in singles])]
    else:
        found = _solve(group, tied, callbacks, compile)
    ends = iter(found)
    return [[next(ends) for _ in own] for own in parts]


def needs_single_runs(group: Group) -> bool:
    """Whether networks must be trained one by one: they draw their own random numbers, or torch cannot vectorise them.

    The default perceptron can always be vectorised. Other networks are tried on the first batch.
    """
    if group.problems[0].stochastic or any(map(runs_alone, group.tasks, group.problems)):
        return True
    return group.tasks[0].model is not None and why_not_vectorised(group.problems) is not None


def runs_alone(task: Task, problem: Bilevel) -> bool:
    """Whether to train a network alone instead of in a population.

    Batches from loaders differ in size, and recurrent networks cannot be vectorised as a population. In a population,
    convolutions become grouped convolutions, which take twice as long on a CPU (small images, five networks).
    """
    layers = list(problem.view.module.modules())
    slow = problem.start.device.type == "cpu" and any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in layers)
    return task.train.loaded or slow or any(isinstance(m, nn.RNNBase) for m in layers)


def build(methods: Sequence[Method], tasks: Sequence[Task]) -> list[Bilevel]:
    """One problem for each task. All but the first are replicas, which are cheap to create."""
    first, task = methods[0], tasks[0]
    problem = first.problem(_model(first, task), task)
    return [
        problem,
        *(
            problem.replicate(
                problem.view.draw(own.seed) if own.model is None else _model(method, own),
                **method.data(own),
                seed=own.seed,
            )
            for method, own in zip(methods[1:], tasks[1:], strict=True)
        ),
    ]


def _model(method: Method, task: Task) -> nn.Module:
    """A network for one task, on the device of its data."""
    if task.model is None:
        return method.network(task)
    model = unwrapped(task.model if isinstance(task.model, nn.Module) else task.model(task.seed))
    device, own = tensors_of(task.train.inputs)[0].device, next(model.parameters()).device
    return model if own == device else model.to(device)


def _solve(group: Group, tied: Sequence[int] | None, callbacks: Sequence[Callback], compile: Compile) -> list[Outcome]:
    """Solve a single problem directly, and several as a population."""
    how: Solving = group.methods[0].solving(group)
    wanted = how.compile if compile == "auto" else compile
    if wanted == "auto":
        wanted = "trace" if group.tasks[0].model is None else None
    rounds = [-(-steps // how.hypergradient.steps) for steps in how.steps]
    alone = len(group.problems) == 1
    solution = solve(
        group.problems[0] if alone else Population(group.problems, tied=tied),
        hypergradient=how.hypergradient,
        inner_optimizer=how.inner_optimizer,
        outer_optimizer=how.outer_optimizer,
        outer_steps=rounds[0] if len(set(rounds)) == 1 else torch.tensor(rounds, device="cpu"),
        callbacks=[*([how.history] if how.history else []), *callbacks, *how.callbacks],
        compile=wanted,
        **how.settings,
    )
    members = [solution] if alone else [solution.member(k) for k in range(len(group.problems))]
    rows = {}
    if how.history is not None:
        recorded = {name: how.history[name] for name, values in how.history.rows.items() if values}
        rows = {name: values.unsqueeze(1) if alone else values for name, values in recorded.items()}
    return [
        Outcome(task, own, {name: values[:, k] for name, values in rows.items()})
        for k, (task, own) in enumerate(zip(group.tasks, members, strict=True))
    ]
