"""The interface of methods, and the training of a group of equal methods by the engine.

A method declares a problem for a model and a task (``problem``), how to solve it (``solving``) and what to keep
(``result``). :meth:`Method.fit_group` does the rest for any model: it builds the problems, solves them alone or as a
population, and returns one result for each task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from calibrant.base.parallel import map_jobs
from calibrant.bilevel import Bilevel, Callback, History, Hypergradient, Optimizer, Population, Solution, solve
from calibrant.bilevel.compiled import Compiler
from calibrant.bilevel.problem.population import why_not_vectorised
from calibrant.bilevel.running.finite import NonFiniteError
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
        """Training steps of each network (:func:`total_steps`), from ``epochs`` of a method; by default its field."""
        wanted = [epochs(method) if epochs else method.epochs for method in self.methods]
        return [total_steps(p.train.batches, e, default, passes) for p, e in zip(self.problems, wanted, strict=True)]


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
    history: History = field(default_factory=History)
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


def needs_single_runs(group: TrainingGroup) -> bool:
    """Whether networks must be trained one by one instead of as a population.

    Networks that draw their own random numbers and recurrent networks cannot be vectorised, and batches from loaders
    differ in size. In a population, convolutions become grouped convolutions, which take twice as long on a CPU (small
    images, five networks). The default perceptron can always be vectorised; other networks are tried on the first
    batch.
    """
    problem = group.problems[0]
    if problem.stochastic or any(task.train.loaded for task in group.tasks):
        return True
    single = (nn.RNNBase, nn.Conv1d, nn.Conv2d, nn.Conv3d) if problem.start.device.type == "cpu" else (nn.RNNBase,)
    if any(isinstance(layer, single) for p in group.problems for layer in p.view.module.modules()):
        return True
    return group.tasks[0].model is not None and why_not_vectorised(group.problems) is not None


def build(methods: Sequence[Method], tasks: Sequence[Task]) -> TrainingGroup:
    """One problem for each task. All but the first are replicas, which are cheap to create."""
    problem = methods[0].problem(_model(methods[0], tasks[0]), tasks[0])
    problems = [problem]
    for method, task in zip(methods[1:], tasks[1:], strict=True):
        start = problem.view.draw(task.seed) if task.model is None else _model(method, task)
        problems.append(problem.replicate(start, **method.data(task), seed=task.seed))
    return TrainingGroup(methods, tasks, problems)


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
    if not alone and tied and group.tasks[0].model is not None and (reason := why_not_vectorised(group.problems)):
        raise ValueError(
            "This method trains its networks together under torch.func.vmap, which the model does not support: "
            f"{reason.rstrip(' .')}. Use another method, such as the default."
        )
    solution = solve(
        group.problems[0] if alone else Population(group.problems, tied=tied),
        hypergradient=how.hypergradient,
        inner_optimizer=how.inner_optimizer,
        outer_optimizer=how.outer_optimizer,
        outer_steps=rounds[0] if len(set(rounds)) == 1 else torch.tensor(rounds, device="cpu"),
        callbacks=[how.history, *callbacks, *how.callbacks],
        compile=wanted,
        **how.settings,
    )
    history = {name: how.history[name] for name, rows in how.history.rows.items() if rows}
    if alone:
        return [TrainedNetwork(group.tasks[0], solution, history)]
    own = [{name: rows[:, k] for name, rows in history.items()} for k in range(len(group.tasks))]
    return [TrainedNetwork(task, solution.member(k), own[k]) for k, task in enumerate(group.tasks)]


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
        """The default model for tasks without one: the perceptron of the first paper, initialised with their seed."""
        inputs = task.train.inputs
        if not isinstance(inputs, Tensor) or inputs.dim() != 2 or not inputs.is_floating_point():
            got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ValueError(
                f"The default network takes rows of numbers, (samples, features); got inputs of {got}. Pass your own "
                "model: Task(..., model=…) or calibrant.fit(model, …)."
            )
        names = ("hidden", "activation", "dropout")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names if hasattr(self, name)}
        with torch.device("cpu"):  # the same parameters on all devices, also under torch.set_default_device
            return mlp(inputs.shape[1], task.n_classes, **settings, seed=task.seed).to(inputs)

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
        """What to keep besides the network; it becomes ``extras`` of the result. By default the history of losses."""
        return {"history": outcome.history}

    def rows_at_once(self, task: Task) -> int:
        """Rows whose activations one fit holds in memory at once; this determines its memory use."""
        return task.train.batch_size(getattr(self, "batch_size", None)) or len(task.train)

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[Any],
        tasks: Sequence[Task],
        *,
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Any]:
        """Train methods that differ only in ``varying`` fields, each on its task.

        Their networks are trained as one population if that is possible and faster, and otherwise one by one
        (:func:`needs_single_runs`). If one of several networks diverges, its result has a ``failure``. If a single
        network diverges, a NonFiniteError is raised. ``fit`` always raises, and ``fit_all`` never does.
        """
        pairs = list(zip(methods, tasks, strict=True))
        if cls.one_by_one and len(pairs) > 1:
            return [cls.fit_group([m], [t], callbacks=callbacks, compile=compile)[0] for m, t in pairs]
        parts = [list(m.parts(t)) for m, t in pairs]
        numbers = [k for k, networks in enumerate(parts) for _ in networks]
        group = build([methods[k] for k in numbers], even([task for networks in parts for task in networks]))
        if len(numbers) > 1 and not cls.tied and needs_single_runs(group):
            each = zip(group.methods, group.tasks, group.problems, strict=True)
            jobs = [(TrainingGroup([m], [t], [p]), None, callbacks, compile) for m, t, p in each]
            trained = [network for (network,) in map_jobs(_solve, jobs)]
        else:
            trained = _solve(group, numbers if cls.tied else None, callbacks, compile)
        ends = iter(trained)
        return [m.result(t, [next(ends) for _ in networks]) for (m, t), networks in zip(pairs, parts, strict=True)]

    def structure(self) -> tuple[Any, ...]:
        """Everything that must be equal for all members of one population."""
        fields = [f.name for f in dataclasses.fields(self) if f.name not in self.varying]
        return type(self), *(getattr(self, name) for name in fields)

    def fit(self, task: Task, *, callbacks: Sequence[Callback] = (), compile: Compile = "auto") -> Fitted:
        """Train on one task. If training diverges, raise a :class:`calibrant.bilevel.NonFiniteError`."""
        (fitted,) = self.fit_group([self], [task], callbacks=callbacks, compile=compile)
        if fitted.failure:
            raise NonFiniteError(fitted.failure)
        return fitted


def failure(*solutions: Solution) -> str | None:
    """The reason of the first failed run, or None."""
    return next((reason for solution in solutions for reason in solution.failures.values()), None)
