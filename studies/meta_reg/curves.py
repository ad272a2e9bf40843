"""Measure a network after every epoch (Figure 3): error and ECE, mean and spread of γ, and training time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import metrics
from calibrant.bilevel import Bilevel, Callback, FocalWithGamma, NonFiniteError, Run
from calibrant.methods import Samples

PIECE = 2000
"""Number of images per prediction batch."""


class EpochCurve(Callback):
    """Measures the network of a single run on a part after every epoch.

    ``rows`` has one entry per epoch: ``epoch``, ``error``, ``ece`` (15 bins), ``seconds`` (training time since the
    previous entry), and, if the loss has a γ, ``gamma_mean`` and ``gamma_std`` over the part. The network has its
    current weights; a moving average of the weights is used only at the end.
    """

    def __init__(self, part: Samples) -> None:
        self.part = part
        self.rows: list[dict[str, float]] = []
        self.seconds = 0.0
        """The time spent on measuring."""
        self._since = 0.0

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.rows, self.seconds = [], 0.0
        self._since = time.perf_counter()

    def on_step(self, run: Run) -> None:
        problem = run.problem
        assert isinstance(problem, Bilevel)
        epoch = run.state.step // problem.train.batches
        if epoch <= (self.rows[-1]["epoch"] if self.rows else 0):
            return
        _wait(run.state.params)
        begin = time.perf_counter()
        found = self._measure(problem, run)
        _wait(run.state.params)
        end = time.perf_counter()
        self.rows.append({"epoch": epoch, "seconds": begin - self._since, **found})
        self.seconds += end - begin
        self._since = end

    @torch.no_grad()
    def _measure(self, problem: Bilevel, run: Run) -> dict[str, float]:
        net = problem.view.bind(run.state.params, run.state.buffers, train=False, autocast=problem.autocast)
        logits, features = [], []
        learns = isinstance(problem.inner_loss, FocalWithGamma)
        for rows in torch.arange(len(self.part), device=self.part.labels.device).split(PIECE):
            inputs, _ = next(self.part[rows].pieces())
            if learns:
                features.append(net.features(inputs))
                logits.append(net.head(features[-1]))
            else:
                logits.append(net.logits(inputs))
        scores = torch.cat(logits).double()
        if not scores.isfinite().all():
            # on a GPU, steps are checked with a delay: this names the step that failed
            run.deferred_finite_check.look()
            raise NonFiniteError(
                f"The network's logits were not finite after outer step {run.step}. Try a smaller learning rate."
            )
        probs = scores.softmax(-1).cpu()
        labels = self.part.labels.cpu()
        found = {
            "error": 1 - float(metrics.accuracy(probs, labels)),
            "ece": float(metrics.ece(probs, labels)),
        }
        if learns:
            gamma = problem.outer_view.run(run.phi, lambda outer: outer(torch.cat(features))).double()
            found |= {"gamma_mean": gamma.mean().item(), "gamma_std": gamma.std(correction=0).item()}
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.seconds = list(state["rows"]), state["seconds"]

    def steady_seconds(self) -> float | None:
        """Training time without compilation: an epoch longer than twice the median counts as a mean epoch.

        None without any epoch.
        """
        if not self.rows:
            return None
        each = np.array([row["seconds"] for row in self.rows])
        return float(each[each <= 2 * np.median(each)].mean() * len(each))

    def columns(self) -> dict[str, list[float]]:
        """The rows as lists by name, with four significant digits."""
        names = [name for name in (self.rows[0] if self.rows else ()) if name != "seconds"]
        return {name: [float(f"{row[name]:.4g}") for row in self.rows] for name in names}


def _wait(tensor: Tensor) -> None:
    """Wait for the device, so that times are assigned correctly."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
