"""Plain networks trained on folds: the default for small data with any new model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.bilevel import Callback
from calibrant.methods.adapter import Compile
from calibrant.methods.base import Method
from calibrant.methods.calibrated_mean import calibrated_mean
from calibrant.methods.crossfit import CrossFit, fold_tasks
from calibrant.methods.dealing import folds_of, grouped
from calibrant.methods.fitted import Fitted
from calibrant.methods.standard import Standard
from calibrant.methods.task import Task

_PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128, patience=200)


@dataclass(frozen=True)
class CrossFitted(Method):
    """The mean of networks that ``base`` trains, each without one of K folds, calibrated on held-out labels.

    The training and validation parts are pooled. Each network is trained without its fold. With the default base, it is
    restored to the state with the lowest loss on that fold. The classifier is that of :class:`SelfCalibrated`:
    ``(1 − λ)·softmax(mean_k z_k(x)/T + b) + λ/C``. T, b and λ are fitted to held-out logits: those of the networks that
    were not trained on a sample. There are no outer variables, so the cost is K plain trainings, for any model.

    Parameters
    ----------
    base : Method
        Any method that trains one network with a training and a validation part.
    folds : int
        K, the number of folds.
    repeats : int
        How often new folds are drawn; ``folds·repeats`` networks are trained.
    """

    base: Method = _PLAIN
    folds: int = 5
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}.")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1; got {self.repeats}.")

    def rows_at_once(self, task: Task) -> int:
        return self.folds * self.repeats * self.base.rows_at_once(task)

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[CrossFitted],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        first, tasks = methods[0], [grouped(task.read()) for task in tasks]
        parts = []
        for task in tasks:
            pooled = task.train if task.val is None else task.train + task.val
            parts.append(fold_tasks(task, pooled, folds_of(task, pooled, first.folds, first.repeats)))
        flat = [own for dealt in parts for own in dealt]
        networks = iter(first.base.fit_group([first.base] * len(flat), flat, callbacks, compile))
        result: list[Fitted] = []
        for task, own in zip(tasks, parts, strict=True):
            heads = [head for _ in own for head in next(networks).networks]
            pairs = [(head, t.fold) for head, t in zip(heads, own, strict=True) if t.fold is not None]
            begun = [pair for pair in pairs if pair[0].outer_steps] or pairs  # untrained after an interrupt
            kept, dealt = zip(*begun, strict=True)
            fit = CrossFit(tuple(kept), tuple(dealt), own[0].pooled or task.train)
            result.append(calibrated_mean(fit, "plain", len(task.train)))
        return result
