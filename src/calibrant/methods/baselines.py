"""Methods built from other methods: the mean of several networks, and a calibrator fitted after training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.bilevel import Callback
from calibrant.data.streams import mix
from calibrant.methods.adapter import Compile
from calibrant.methods.base import Method
from calibrant.methods.fitted import Fitted, Mixture, Recalibrated, held_out_logits
from calibrant.methods.standard import Standard
from calibrant.methods.task import Task
from calibrant.posthoc import make_calibrator
from calibrant.posthoc.registry import check_calibrator

_STANDARD = Standard()
STOPPED = Standard(patience=200)
"""Standard training that restores the state with the best validation loss: the base of the stopped baselines."""


@dataclass(frozen=True)
class Ensemble(Method):
    """The mean of several networks with different initial parameters (Lakshminarayanan et al. 2017).

    ``base`` is any method that trains one network.
    """

    base: Method = STOPPED
    members: int = 5

    def rows_at_once(self, task: Task) -> int:
        return self.members * self.base.rows_at_once(task)

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[Ensemble],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        first = methods[0]
        again = [task.again(mix(task.seed, k) % 2**31) for task in tasks for k in range(first.members)]
        every = first.base.fit_group([first.base] * len(again), again, callbacks, compile)
        groups = [every[k : k + first.members] for k in range(0, len(every), first.members)]
        return [
            Mixture(
                begun([net for member in group for net in member.networks]),
                failure=next((m.failure for m in group if m.failure), None),
            )
            for group in groups
        ]


def begun(networks: Sequence[Any]) -> tuple[Any, ...]:
    """The networks whose training started. After an interrupt, the later networks are untrained."""
    return tuple(net for net in networks if net.outer_steps) or tuple(networks)


@dataclass(frozen=True)
class Calibrated(Method):
    """Train with ``base``, which can be any method, then fit a calibrator on the validation part."""

    calibrator: str
    base: Method = _STANDARD

    def __post_init__(self) -> None:
        check_calibrator(self.calibrator, "calibrator")

    def rows_at_once(self, task: Task) -> int:
        return self.base.rows_at_once(task)

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[Calibrated],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        for method, task in zip(methods, tasks, strict=True):
            method.need_val(task)
        trained = methods[0].base.fit_group([m.base for m in methods], tasks, callbacks, compile)
        return [method.calibrate(model, task) for method, model, task in zip(methods, trained, tasks, strict=True)]

    def need_val(self, task: Task) -> None:
        """Raise an error before training if the task has no validation part."""
        task.need_val(f"The calibrator {self.calibrator!r}")

    def calibrate(self, model: Fitted, task: Task) -> Fitted:
        """Fit the calibrator to an already trained model."""
        self.need_val(task)
        assert task.val is not None
        if model.failure:
            return model
        scores, labels, weights = held_out_logits(model, task.val)
        calibrator = make_calibrator(self.calibrator).fit(scores.numpy(), labels.numpy(), weights)
        return Recalibrated(model, calibrator, extras=model.extras)
