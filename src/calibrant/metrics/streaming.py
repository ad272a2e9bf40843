"""Calibration errors over a stream of batches, with fixed memory and mergeable states."""

from __future__ import annotations

from typing import Any, Self, Unpack

import torch
from torch import Tensor

from calibrant.base.settings import check_whole
from calibrant.metrics.bins import BinSums, Norm, bin_edges, bin_sums, calibration_error
from calibrant.metrics.classwise import width_sums
from calibrant.metrics.predictions import InputKeywords, Predictions, read


class StreamingECE:
    """ECE over bins of equal width, batch by batch: `update`, `compute`, `reset`, `merge_state`, `sync`.

    The state is four float64 sums per bin (`sums`, on the device of the last batch): weights, squared weights,
    confidence and hits. States of several processes or files add up, so that the result does not depend on the division
    into batches, up to rounding. The methods have the names and meaning of torchmetrics. The classes of
    `calibrant.integrations` are real `torchmetrics.Metric`, for Lightning or a MetricCollection.

    Parameters are those of `calibrant.metrics.ece`.
    """

    def __init__(self, bins: int = 15, norm: Norm = "l1", debias: bool = False) -> None:
        self.bins, self.norm, self.debias = check_whole("bins", bins), norm, debias
        # An unknown norm fails here, not after the last batch.
        calibration_error(BinSums(*torch.ones(4, 1, device="cpu")), norm, debias)
        self.sums = torch.zeros(self._shape(), dtype=torch.float64, device="cpu")

    def _shape(self) -> tuple[int, ...]:
        return (4, self.bins)

    def batch_sums(self, probs: Any = None, labels: Any = None, **keywords: Unpack[InputKeywords]) -> Tensor:
        """Sums of one batch, without keeping them."""
        return self._sums(read(probs, labels, **keywords))

    def _sums(self, p: Predictions) -> Tensor:
        edges = bin_edges(p.confidence, self.bins, "width")
        return _stack(bin_sums(p.confidence, p.correct, p.weight, edges, "width"))

    def value(self, sums: Tensor) -> float:
        """The value for these sums; NaN before the first batch."""
        if not bool(sums[0].any()):
            return float("nan")
        return calibration_error(BinSums(*sums), self.norm, self.debias).mean().item()

    def update(self, probs: Any = None, labels: Any = None, **keywords: Unpack[InputKeywords]) -> None:
        """Add a batch; arguments as in `ece`."""
        batch = self.batch_sums(probs, labels, **keywords)
        self.sums = self.sums.to(batch.device) + batch

    def __call__(self, probs: Any = None, labels: Any = None, **keywords: Unpack[InputKeywords]) -> float:
        """Add a batch and return the value on that batch alone, as torchmetrics does."""
        batch = self.batch_sums(probs, labels, **keywords)
        self.sums = self.sums.to(batch.device) + batch
        return self.value(batch)

    def compute(self) -> float:
        """Value over everything seen so far."""
        return self.value(self.sums)

    def reset(self) -> None:
        """Forget everything seen so far."""
        self.sums = torch.zeros_like(self.sums)

    def merge_state(self, other: StreamingECE) -> None:
        """Add what another accumulator of the same settings has seen."""
        if type(other) is not type(self) or other.sums.shape != self.sums.shape:
            raise ValueError(
                f"other must be an accumulator of the same kind and size; got {type(self).__name__} with sums "
                f"of shape {tuple(self.sums.shape)} and {type(other).__name__} with {tuple(other.sums.shape)}."
            )
        self.sums = self.sums + other.sums.to(self.sums.device)

    def sync(self) -> Self:
        """Return an accumulator with the sums of all processes of torch.distributed, if there are several."""
        merged = self._copy()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(merged.sums)
        return merged

    def _copy(self) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, sums=self.sums.clone())
        return copy

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state, for a checkpoint."""
        return {"sums": self.sums.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take a state that `state_dict` returned."""
        sums = state["sums"]
        if sums.shape != self.sums.shape:
            raise ValueError(f"sums must have shape {tuple(self.sums.shape)}; got {tuple(sums.shape)}.")
        self.sums = sums.double().clone()

    def __repr__(self) -> str:
        state = f"{self.sums[0].sum().item() / self._copies():g} seen, value {self.compute():.4g}"
        return f"{type(self).__name__}(bins={self.bins}, norm={self.norm!r}, debias={self.debias}; {state})"

    def _copies(self) -> int:
        return 1


class StreamingMCE(StreamingECE):
    """Maximum calibration error over bins of equal width, batch by batch."""

    def __init__(self, bins: int = 15) -> None:
        super().__init__(bins, norm="max")


class StreamingClasswiseECE(StreamingECE):
    """Class-wise ECE over bins of equal width, batch by batch; needs the number of classes."""

    def __init__(self, n_classes: int, bins: int = 15, norm: Norm = "l1", debias: bool = False) -> None:
        self.n_classes = check_whole("n_classes", n_classes)
        super().__init__(bins, norm, debias)

    def _shape(self) -> tuple[int, ...]:
        return (4, self.n_classes, self.bins)

    def _copies(self) -> int:
        return self.n_classes

    def batch_sums(self, probs: Any = None, labels: Any = None, **keywords: Unpack[InputKeywords]) -> Tensor:
        """Sums of one batch, without keeping them."""
        p = read(probs, labels, matrix_only=True, **keywords)
        assert p.probs is not None
        assert p.labels is not None
        if p.probs.shape[1] != self.n_classes:
            raise ValueError(f"probs must have {self.n_classes} columns; got {p.probs.shape[1]}.")
        return _stack(width_sums(p.probs, p.labels, p.weight, self.bins))


def _stack(sums: BinSums) -> Tensor:
    return torch.stack([sums.weight, sums.weight_sq, sums.confidence, sums.correct])
