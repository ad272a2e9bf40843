"""Callbacks for :func:`calibrant.fit` that evaluate the validation data during training."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from calibrant import metrics
from calibrant.bilevel import Bilevel, Callback
from calibrant.bilevel.running.run import Run
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
        outputs = self.outputs(run)
        return {} if outputs is None or self.part is None else calibration_scores(*outputs, self.part.sample_weight)

    def outputs(self, run: Run) -> tuple[Tensor, Tensor] | None:
        """Logits of the current network and labels of the validation part; None if there is no part or one network."""
        problem, state = run.problem, run.state
        if self.part is None or not isinstance(problem, Bilevel):
            return None
        net = problem.view.bind(state.params, state.buffers, train=False, autocast=problem.autocast)
        with torch.no_grad():
            return self.part.predicted(lambda inputs: net.logits(inputs).double())


def calibration_scores(logits: Any, labels: Any, sample_weight: Any = None) -> dict[str, float]:
    """NLL, accuracy and smooth ECE of logits (n, C), the best temperature, and the NLL with that temperature.

    With ``sample_weight``, one weight per row, all of them are weighted.

    >>> import torch
    >>> scores = calibration_scores(torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 1, 1]))
    >>> [round(scores[name], 3) for name in ("nll", "accuracy", "temperature")]
    [1.351, 0.667, 5.771]
    """
    scores, known = (torch.as_tensor(values, device="cpu").detach() for values in (logits, labels))
    scores = scores.double()
    weights = None if sample_weight is None else torch.as_tensor(sample_weight, device="cpu").detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # early logits may carry no information
        temperature = Temperature().fit(scores.numpy(), known.numpy(), weights)
    calibrated: Tensor = torch.from_numpy(temperature.predict_proba(scores.numpy()))
    return {
        "nll": metrics.nll(scores, known, from_logits=True, sample_weight=weights),
        "accuracy": metrics.accuracy(scores, known, from_logits=True, sample_weight=weights),
        "smooth_ece": metrics.smooth_ece(scores, known, from_logits=True, sample_weight=weights),
        "temperature": float(temperature.temperature_),
        "nll_calibrated": metrics.nll(calibrated, known, sample_weight=weights),
    }
