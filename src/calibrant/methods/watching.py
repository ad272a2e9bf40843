"""Callbacks for :func:`calibrant.fit` that evaluate the validation data during training."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from calibrant import metrics
from calibrant.bilevel import Bilevel, Callback
from calibrant.bilevel.run import Run
from calibrant.methods.part import Part
from calibrant.posthoc.temperature import Temperature

if TYPE_CHECKING:
    from calibrant.methods.trained import Trained


class Watcher(Callback):
    """A callback that receives the validation data and the result of :func:`calibrant.fit`."""

    part: Part | None = None

    def watch(self, part: Part | None) -> None:
        """Receive the validation part before training."""
        self.part = part

    def finish(self, result: Trained) -> None:
        """Receive the result after training and calibration."""

    def validation(self, run: Run) -> dict[str, float]:
        """Scores of the current network on the validation part; empty if several networks are trained at once."""
        problem, state = run.problem, run.state
        if self.part is None or not isinstance(problem, Bilevel):
            return {}
        net = problem.view.bind(state.params, state.buffers, train=False, autocast=problem.autocast)
        with torch.no_grad():
            return calibration_scores(*self.part.predicted(lambda inputs: net.logits(inputs).double()))


def calibration_scores(logits: Any, labels: Any) -> dict[str, float]:
    """NLL, accuracy and smooth ECE of logits (n, C), the best temperature, and the NLL with that temperature.

    >>> import torch
    >>> scores = calibration_scores(torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 1, 1]))
    >>> [round(scores[name], 3) for name in ("nll", "accuracy", "temperature")]
    [1.351, 0.667, 5.771]
    """
    scores, known = (torch.as_tensor(values, device="cpu").detach() for values in (logits, labels))
    scores = scores.double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # early logits may carry no information
        temperature = Temperature().fit(scores.numpy(), known.numpy())
    calibrated: Tensor = torch.from_numpy(temperature.predict_proba(scores.numpy()))
    given = {"from_logits": True}
    return {
        "nll": float(metrics.nll(scores, known, **given)),  # type: ignore[arg-type]
        "accuracy": float((scores.argmax(1) == known).double().mean()),
        "smooth_ece": float(metrics.smooth_ece(scores, known, **given)),  # type: ignore[arg-type]
        "temperature": float(temperature.temperature_),
        "nll_calibrated": float(metrics.nll(calibrated, known)),  # type: ignore[arg-type]
    }
