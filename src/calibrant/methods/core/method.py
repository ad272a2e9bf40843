"""The interface of methods, and the training of a group of equal methods by the engine.

Train the problems of methods with the engine: one function for any method, model and number of networks. A method
declares a problem and how to solve it (:mod:`calibrant.methods.core.method`). :func:`solve_group` builds the problems,
solves them alone or as a population, and returns one outcome for each network.

The interface of methods: a method declares a problem, how to solve it and what to keep. A method defines its problem
for a model and a task (``problem``), how to solve it (``solving``) and what to keep (``result``).
:mod:`calibrant.methods.core.method` does the rest for any model, alone or as a population.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from calibrant.base.parallel import map_jobs
from calibrant.bilevel import (
    Bilevel,
    Callback,
    History,
    Hypergradient,
    NonFiniteError,
    Optimizer,
    Population,
    Solution,
    solve,
)
from calibrant.bilevel.compiled import Compiler
from calibrant.bilevel.problem.population import why_not_vectorised
from calibrant.data.streams.batch import tensors_of
from calibrant.methods.core.results import Fitted, Mixture
from calibrant.methods.core.task import Task, even, streams, total_steps
from calibrant.models.architectures.mlp import mlp
from calibrant.models.functional.user_modules import unwrapped

Compile = Compiler | Literal["auto"] | None


@dataclass(frozen=True)
class TrainingGroup:
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
class SolveSettings:
    """How to solve the problems of a group: the arguments of :func:`calibrant.bilevel.solve`."""

    hypergradient: Hypergradient
    inner_optimizer: Optimizer
    steps: Sequence[int]
    """Training steps of each network; :meth:`TrainingGroup.steps` counts them in epochs."""
    outer_optimizer: Optimizer | None = None
    callbacks: Sequence[Callback] = ()
    """Early stopping, a moving average of the weights, …"""
    history: History | None = None
    """Records every outer step; each network's :class:`TrainedNetwork` has its own rows."""
    compile: Compile = "auto"
    """As in ``solve``. ``"auto"`` traces the method's default perceptron and runs other modules eagerly."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further arguments of ``solve``: ``restart``, ``clip_norm``, …"""


@dataclass(frozen=True)
class TrainedNetwork:
    """One trained network."""

    task: Task
    solution: Solution
    history: dict[str, Tensor] = field(default_factory=dict)
    """This network's rows of ``SolveSettings.history``, by name."""


def solve_group(
    methods: Sequence[Method], tasks: Sequence[Task], callbacks: Sequence[Callback] = (), compile: Compile = "auto"
) -> list[list[TrainedNetwork]]:
    """Train the networks of every method and task, and return the outcomes of each task in order.

    Networks are trained as one population if that is possible and faster, and otherwise one by one (see
    :func:`needs_single_runs`). Networks that share φ are always trained as one population.
    """
    parts = [list(m.parts(t)) for m, t in zip(methods, tasks, strict=True)]
    each = [m for m, method_tasks in zip(methods, parts, strict=True) for _ in method_tasks]
    flat = even([task for method_tasks in parts for task in method_tasks])
    first = methods[0]
    group = TrainingGroup(each, flat, build(each, flat))
    tied = [k for k, method_tasks in enumerate(parts) for _ in method_tasks] if first.tied else None
    if tied and len(flat) > 1 and flat[0].model is not None and (reason := why_not_vectorised(group.problems)):
        raise ValueError(
            "This method trains its networks together under torch.func.vmap, which the model does not support: "
            f"{reason.rstrip(' .')}. Use another method, such as the default."
        )
    if len(flat) > 1 and tied is None and needs_single_runs(group):
        singles = [TrainingGroup([m], [t], [p]) for m, t, p in zip(each, flat, group.problems, strict=True)]
        trained = [one for (one,) in map_jobs(_solve, [(g, None, callbacks, compile) for g in singles])]
    else:
        trained = _solve(group, tied, callbacks, compile)
    ends = iter(trained)
    return [[next(ends) for _ in method_tasks] for method_tasks in parts]


def needs_single_runs(group: TrainingGroup) -> bool:
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
                problem.view.draw(replica_task.seed) if replica_task.model is None else _model(method, replica_task),
                **method.data(replica_task),
                seed=replica_task.seed,
            )
            for method, replica_task in zip(methods[1:], tasks[1:], strict=True)
        ),
    ]


def _model(method: Method, task: Task) -> nn.Module:
    """A network for one task, on the device of its data."""
    if task.model is None:
        return method.network(task)
    model = unwrapped(task.model if isinstance(task.model, nn.Module) else task.model(task.seed))
    device, model_device = tensors_of(task.train.inputs)[0].device, next(model.parameters()).device
    return model if model_device == device else model.to(device)


def _solve(
    group: TrainingGroup, tied: Sequence[int] | None, callbacks: Sequence[Callback], compile: Compile
) -> list[TrainedNetwork]:
    """Solve a single problem directly, and several as a population."""
    how: SolveSettings = group.methods[0].solving(group)
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
        TrainedNetwork(task, member_solution, {name: values[:, k] for name, values in rows.items()})
        for k, (task, member_solution) in enumerate(zip(group.tasks, members, strict=True))
    ]


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

    def solving(self, group: TrainingGroup) -> SolveSettings:
        """How to solve the problems of a group. The methods of a group differ only in ``varying`` fields."""
        raise NotImplementedError(f"{type(self).__name__} must define solving(group); got none.")

    def result(self, task: Task, outcomes: Sequence[TrainedNetwork]) -> Fitted:
        """The classifier built from the trained networks of one task."""
        solutions = tuple(outcome.solution for outcome in outcomes)
        return Mixture(solutions, extras=self.learned(outcomes[0]), failure=failure(*solutions))

    def learned(self, outcome: TrainedNetwork) -> dict[str, Any]:
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
        trained = solve_group(methods, tasks, callbacks, compile)
        return [m.result(t, outcomes) for m, t, outcomes in zip(methods, tasks, trained, strict=True)]

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
