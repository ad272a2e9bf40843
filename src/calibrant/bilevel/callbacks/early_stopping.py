"""Early stopping on held-out data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel.callbacks.base import Callback
from calibrant.bilevel.gradients.dynamics import State
from calibrant.bilevel.problem.evaluation import outer_loss_of_all, val_batches
from calibrant.bilevel.running.finite import NonFiniteError
from calibrant.bilevel.running.run import Run
from calibrant.data.streams.batch import Batch


class EarlyStopping(Callback):
    """Stop when a criterion on held-out data has not improved for ``patience`` outer steps.

    Each member of a population stops separately. Tied members share φ, so they stop together, by the mean criterion
    of those that still run.

    Parameters
    ----------
    criterion : callable ``run -> Tensor``, optional
        One value per member; smaller is better. The default is the outer loss after the step's training, computed from
        the predictions on all validation data together. :func:`pooled` makes a criterion from any function of logits
        and labels.
    patience : int, optional
        The number of outer steps without an improvement after which the run stops. None never stops and only remembers
        the best state.
    min_delta : float
        The smallest change that counts as an improvement.
    restore_best : bool
        End with the parameters, buffers and φ of the best step instead of the last step.
    every : int
        The number of outer steps between two evaluations of the criterion.
    """

    def __init__(
        self,
        criterion: Callable[[Run], Tensor] | None = None,
        *,
        patience: int | None = 10,
        min_delta: float = 0.0,
        restore_best: bool = True,
        every: int = 1,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}.")
        self.criterion = criterion or self._outer_loss
        self.patience, self.min_delta, self.restore_best, self.every = (patience, min_delta, restore_best, every)
        self.best: Tensor | None = None
        self.best_step: Tensor | None = None
        self._best_state: State | None = None
        self._best_phi: Tensor | None = None
        self._batches: list[Batch] = []

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.best = self.best_step = self._best_state = self._best_phi = None
        if self.criterion == self._outer_loss:  # all validation data, the same in every evaluation
            self._batches = val_batches(run.problem)

    def on_step(self, run: Run) -> None:
        if run.step % self.every:
            return
        value = self.criterion(run).detach().reshape(-1).cpu().double()
        self._refuse_nan(run, value)
        if self.best is None:
            self.best = torch.full_like(value, float("inf"))
            self.best_step = torch.zeros_like(value, dtype=torch.long)
            self._best_state, self._best_phi = run.state, run.phi
        assert self.best_step is not None
        counts = run.ran & ~run.active.new_tensor([m in run.failures for m in range(len(run.active))])
        value = run.pool(value, counts)
        better = (value < self.best - self.min_delta) & counts
        self.best = torch.where(better, value, self.best)
        self.best_step = torch.where(better, run.step, self.best_step)
        if bool(better.any()):
            self._best_state = run.select(better, run.state, self._best_state)
            self._best_phi = run.select(run.together(better), run.phi, self._best_phi)
        if self.patience is not None:
            run.stop(f"no improvement for {self.patience} outer steps", run.step - self.best_step >= self.patience)

    def on_end(self, run: Run) -> None:
        if self.restore_best and self._best_state is not None and self._best_phi is not None:
            run.state, run.phi = self._best_state._replace(step=run.live_state.step), self._best_phi

    def _outer_loss(self, run: Run) -> Tensor:
        """The outer loss of all predictions together, which is not the mean of the losses of batches."""
        if len(self._batches) == 1:
            return run.evaluate(batch=self._batches[0])
        state = run.live_state
        return outer_loss_of_all(run.problem, state.params, state.buffers, run.phi, self._batches)

    def _refuse_nan(self, run: Run, value: Tensor) -> None:
        """Fail members whose criterion is NaN. Otherwise they would silently return to their first step."""
        for member in (value.isnan() & run.active).nonzero().flatten().tolist():
            message = (
                f"The criterion of early stopping was NaN after outer step {run.step}. Look for held-out data on which "
                "it is undefined, or for predictions that are not finite."
            )
            if not run.is_population:
                raise NonFiniteError(message)
            run.fail(member, message)

    def state_dict(self) -> dict[str, Any]:
        if self._best_state is None:
            return {}
        found = {"best": self.best, "best_step": self.best_step, "phi": self._best_phi, "step": self._best_state.step}
        return found | self._best_state.tensors()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.best, self.best_step, self._best_phi = state["best"].cpu(), state["best_step"].cpu(), state["phi"]
            self._best_state = State.of(state, state["step"])
