"""Calibration errors as classes of torchmetrics, for a ``MetricCollection`` or Lightning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from calibrant.metrics import StreamingClasswiseECE, StreamingECE, smooth_ece
from calibrant.metrics.bins import Norm
from calibrant.metrics.predictions import read


class _Streaming(Metric):
    """A metric around an accumulator. Its state is the sums, which are added up over processes."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    sums: Tensor

    def __init__(self, accumulator: StreamingECE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.accumulator = accumulator
        self.add_state("sums", torch.zeros_like(accumulator.sums), dist_reduce_fx="sum")

    def update(self, probs: Any = None, labels: Any = None, **keywords: Any) -> None:
        """Add a batch; arguments as in :func:`calibrant.metrics.ece`."""
        self.sums = self.sums + self.accumulator.batch_sums(probs, labels, **keywords).to(self.sums.device)

    def compute(self) -> Tensor:
        """The value over everything seen so far, as a float64 scalar."""
        return torch.tensor(self.accumulator.value(self.sums), dtype=torch.float64, device=self.sums.device)


class ECE(_Streaming):
    """Expected calibration error over bins of equal width; arguments are those of :func:`calibrant.metrics.ece`.

    ``metric.update(probs, labels)``, or ``metric.update(logits, labels, from_logits=True)``. The memory does not grow.
    """

    def __init__(self, bins: int = 15, norm: Norm = "l1", debias: bool = False, **kwargs: Any) -> None:
        super().__init__(StreamingECE(bins, norm, debias), **kwargs)


class ClasswiseECE(_Streaming):
    """Class-wise expected calibration error over bins of equal width; see :func:`calibrant.metrics.classwise_ece`."""

    def __init__(self, n_classes: int, bins: int = 15, norm: Norm = "l1", debias: bool = False, **kwargs: Any) -> None:
        super().__init__(StreamingClasswiseECE(n_classes, bins, norm, debias), **kwargs)


class SmoothECE(Metric):
    """Smooth calibration error, :func:`calibrant.metrics.smooth_ece`. It keeps two numbers for each sample."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    confidence: list[Tensor]
    correct: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("confidence", [], dist_reduce_fx="cat")
        self.add_state("correct", [], dist_reduce_fx="cat")

    def update(self, probs: Any = None, labels: Any = None, **keywords: Any) -> None:
        """Add a batch; arguments as in :func:`calibrant.metrics.ece`."""
        predictions = read(probs, labels, **keywords)
        self.confidence.append(predictions.confidence)
        self.correct.append(predictions.correct)

    def compute(self) -> Tensor:
        """The value over everything seen so far, as a float64 scalar; NaN before the first batch."""
        if isinstance(self.confidence, list) and not self.confidence:
            return torch.tensor(torch.nan, dtype=torch.float64)
        confidence, correct = dim_zero_cat(self.confidence), dim_zero_cat(self.correct)
        value = smooth_ece(confidence=confidence, correct=correct)
        return torch.tensor(value, dtype=torch.float64, device=confidence.device)
