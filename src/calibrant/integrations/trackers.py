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
    to : "tensorboard", "mlflow", "wandb", or an object
        An object may be a function ``(values, step) -> None``, torch's ``SummaryWriter``, or a run of Weights & Biases.
    every : int
        The number of outer steps between two evaluations of the validation data. An outer step is a few training steps.
    **settings
        For the name of a tracker: arguments of ``SummaryWriter``, ``mlflow.start_run`` or ``wandb.init``.

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

    def __init__(self, to: str | Any = "tensorboard", *, every: int = 20, **settings: Any) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1; got {every}.")
        self.log, self._close = connect(to, settings)
        self.every = every
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
        self._close()


def connect(to: Any, settings: dict[str, Any]) -> tuple[Log, Callable[[], Any]]:
    """The functions that write to a tracker and close it. Only trackers that are opened here are closed."""
    if isinstance(to, str):
        if to not in _OPENERS:
            raise ValueError(f"A tracker must be one of {', '.join(map(repr, _OPENERS))}, or an object; got {to!r}.")
        return _OPENERS[to](settings)
    if settings:
        raise ValueError(
            f"{', '.join(settings)} must be given with the name of a tracker; got an object. Set them on the object."
        )
    if hasattr(to, "add_scalar"):
        return _to_writer(to), to.flush
    if hasattr(to, "log") and not callable(to):
        return lambda values, step: to.log(values, step=step), lambda: None
    if callable(to):
        return to, lambda: None
    raise TypeError(f"A tracker must be a name, a function, a SummaryWriter or a run with log(); got {to!r}.")


def _to_writer(writer: Any) -> Log:
    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log


def _tensorboard(settings: dict[str, Any]) -> tuple[Log, Callable[[], Any]]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "Tracker('tensorboard') needs TensorBoard. Install it with: pip install tensorboard."
        ) from error
    writer = SummaryWriter(**settings)
    return _to_writer(writer), writer.close


def _mlflow(settings: dict[str, Any]) -> tuple[Log, Callable[[], Any]]:
    try:
        import mlflow
    except ImportError as error:
        raise ImportError("Tracker('mlflow') needs MLflow. Install it with: pip install mlflow.") from error
    starts_run = mlflow.active_run() is None
    if starts_run:
        mlflow.start_run(**settings)
    return lambda values, step: mlflow.log_metrics(values, step=step), mlflow.end_run if starts_run else lambda: None


def _wandb(settings: dict[str, Any]) -> tuple[Log, Callable[[], Any]]:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("Tracker('wandb') needs Weights & Biases. Install it with: pip install wandb.") from error
    run = wandb.init(**settings)
    return lambda values, step: run.log(values, step=step), run.finish


_OPENERS: dict[str, Callable[[dict[str, Any]], tuple[Log, Callable[[], Any]]]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
