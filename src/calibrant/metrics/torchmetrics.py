"""Streaming accumulators as `torchmetrics.Metric`; imported only where torchmetrics is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric

if TYPE_CHECKING:
    from calibrant.metrics.streaming import StreamingECE


class StreamingMetric(Metric):
    """A `torchmetrics.Metric` around an accumulator. Its state is the sums, added up over processes."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    sums: Tensor

    def __init__(self, accumulator: StreamingECE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.accumulator = accumulator
        self.add_state("sums", torch.zeros_like(accumulator.sums), dist_reduce_fx="sum")

    def update(self, probs: Any = None, labels: Any = None, **keywords: Any) -> None:
        """Add a batch; arguments as in `calibrant.metrics.ece`."""
        self.sums = self.sums + self.accumulator.batch_sums(probs, labels, **keywords).to(self.sums.device)

    def compute(self) -> Tensor:
        """Value over everything seen so far, as a float64 scalar."""
        return torch.tensor(self.accumulator.value(self.sums), dtype=torch.float64, device=self.sums.device)
