"""Baselines that are made of trained networks: the mean of several, and a calibrator fitted after training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel import Callback
from calibrant.data.streams import mix
from calibrant.methods.base import Method
from calibrant.methods.standard import Standard
from calibrant.methods.task import Fitted, Mixture, Task
from calibrant.posthoc import make_calibrator

_STANDARD = Standard()
STOPPED = Standard(patience=200)
"""Standard training, returned to its best validation loss: what stopped baselines are made of."""


@dataclass(frozen=True)
class Ensemble(Method):
    """The mean of several networks that differ in their start (Lakshminarayanan et al. 2017)."""

    base: Standard = STOPPED
    members: int = 5

    def rows_at_once(self, task: Task) -> int:
        return self.members * self.base.rows_at_once(task)

    @classmethod
    def fit_group(
        cls, methods: Sequence[Ensemble], tasks: Sequence[Task], callbacks: Sequence[Callback] = ()
    ) -> list[Fitted]:
        first = methods[0]
        again = [replace(task, seed=mix(task.seed, k) % 2**31) for task in tasks for k in range(first.members)]
        every = Standard.fit_group([first.base] * len(again), again, callbacks)
        groups = [every[k : k + first.members] for k in range(0, len(every), first.members)]
        return [
            Mixture(
                tuple(net for member in group for net in member.networks),  # type: ignore[attr-defined]
                failure=next((m.failure for m in group if m.failure), None),
            )
            for group in groups
        ]


@dataclass(frozen=True)
class Calibrated(Method):
    """A calibrator fitted on the validation part, after training with ``base``."""

    calibrator: str
    base: Standard = _STANDARD

    def rows_at_once(self, task: Task) -> int:
        return self.base.rows_at_once(task)

    @classmethod
    def fit_group(
        cls, methods: Sequence[Calibrated], tasks: Sequence[Task], callbacks: Sequence[Callback] = ()
    ) -> list[Fitted]:
        trained = Standard.fit_group([m.base for m in methods], tasks, callbacks)
        return [method.calibrate(model, task) for method, model, task in zip(methods, trained, tasks, strict=True)]

    def calibrate(self, model: Fitted, task: Task) -> Fitted:
        """Fit the calibrator to an already trained model."""
        val = task.need_val(f"The calibrator {self.calibrator!r}")
        if model.failure:
            return model
        weights = None if val.weights is None else val.weights.cpu().numpy()
        calibrator = make_calibrator(self.calibrator)
        calibrator.fit(_scores(model, val.inputs), val.labels.cpu().numpy(), sample_weight=weights)
        return Recalibrated(model, calibrator)


@dataclass(frozen=True)
class Recalibrated(Fitted):
    """A trained model with a calibrator behind it."""

    model: Fitted
    calibrator: Any
    extras: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None

    def probs(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.calibrator.predict_proba(_scores(self.model, inputs)))


def _scores(model: Fitted, inputs: Tensor) -> Any:
    """Logarithms of probabilities: logits as good as any."""
    return model.probs(inputs).clamp_min(1e-300).log().numpy()
