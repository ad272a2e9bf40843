"""Training curves and calibration in an experiment tracker: TensorBoard, MLflow, Weights & Biases, or a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from calibrant.bilevel.running.run import Run
from calibrant.methods.fit.guards import ValidationScores, calibration_scores

if TYPE_CHECKING:
    from calibrant.methods.fit.trained import Trained

Log = Callable[[dict[str, float], int], Any]
"""A function that writes named numbers at a step."""


class Tracker(ValidationScores):
    """Send the training loss, validation scores and the fitted temperature to a tracker.

    Names are ``train/loss``, ``val/nll``, ``val/smooth_ece``, ``val/accuracy``, ``val/temperature`` and
    ``val/nll_calibrated``; at the end, ``calibrated/nll`` and similar names describe the result on the validation data.
    Validation scores use the sample weights of the validation data, if it has them.
    If several networks are trained one after the other, the names of the second start with ``network-1/``, those of the
    third with ``network-2/``, and so on.

    Parameters
    ----------
    to : function ``(values, step)``, or an object
        For TensorBoard a ``SummaryWriter`` of torch, for Weights & Biases the run of ``wandb.init``, and for MLflow
        ``mlflow.log_metrics`` inside a run.
    every : int
        The number of outer steps between two evaluations of the validation data. An outer step is a few training steps.

    Examples
    --------
    >>> import torch, calibrant
    >>> x = torch.sin(torch.arange(240.0)).reshape(60, 4)
    >>> y = (x[:, 0] > 0).long()
    >>> curve = {}
    >>> tracker = Tracker(lambda values, step: curve.setdefault(step, {}).update(values), every=2)
    >>> result = calibrant.fit(torch.nn.Linear(4, 2), (x[:40], y[:40]), (x[40:], y[40:]), epochs=20, networks=1,
    ...                        callbacks=[tracker])
    >>> sorted(curve)
    [2, 4]
    """

    def __init__(self, to: Any, *, every: int = 20) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}.")
        self.log, self.every = log_function(to), every
        self._run, self._step = -1, 0

    def on_start(self, run: Run) -> None:
        self._run += 1

    def on_step(self, run: Run) -> None:
        if run.step % self.every and run.step < run.outer_steps:
            return
        self._step = run.step
        values = {"train/loss": float(run.inner_losses[-1].nanmean())}
        values |= {f"val/{name}": value for name, value in self.validation(run).items()}
        prefix = f"network-{self._run}/" if self._run else ""
        self.log({f"{prefix}{name}": value for name, value in values.items()}, run.step)

    def finish(self, result: Trained) -> None:
        if self.part is not None:
            scores = calibration_scores(*self.part.predicted(result.logits), self.part.sample_weight)
            values = {f"calibrated/{name}": scores[name] for name in ("nll", "smooth_ece", "accuracy")}
            if result.temperature is not None:
                values["calibrated/temperature"] = result.temperature
            self.log(values, self._step)


def log_function(to: Any) -> Log:
    """The function that writes to a tracker."""
    if hasattr(to, "add_scalar"):
        return lambda values, step: [to.add_scalar(name, value, step) for name, value in values.items()]
    if hasattr(to, "log") and not callable(to):
        return lambda values, step: to.log(values, step=step)
    if callable(to):
        return to
    raise TypeError(f"A tracker must be a function, a SummaryWriter or a run with log(); got {to!r}.")
