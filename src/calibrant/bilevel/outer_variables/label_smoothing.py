"""Learned label smoothing."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant._classes import one_hot
from calibrant._settings import check_choice
from calibrant.bilevel.outer_variables.base import OuterVariable, of_batch
from calibrant.data.batch import Batch, Tensors


class LabelSmoothing(OuterVariable):
    """Smoothed targets ``(1 − ε)·onehot + ε/C``, with ``ε = largest·σ(φ)`` per sample or per class.

    Parameters
    ----------
    count : int
        The number of samples or classes.
    per : {"sample", "class"}
        Whether each sample or each class has its own ε.
    initial, largest : float
        The first value of ε, and its upper bound.
    """

    def __init__(
        self,
        count: int,
        *,
        per: Literal["sample", "class"] = "sample",
        initial: float = 0.01,
        largest: float = 1.0,
    ) -> None:
        super().__init__()
        check_choice("per", per, ("sample", "class"))
        if not 0 < initial < largest <= 1:
            raise ValueError(
                f"initial and largest must satisfy 0 < initial < largest <= 1; got {initial=}, {largest=}."
            )
        self.per, self.largest = per, largest
        self.needs_index = per == "sample"
        self.samples = count if per == "sample" else None
        self.raw = nn.Parameter(torch.full((count,), math.log(initial / (largest - initial)), device="cpu"))

    def smoothing(self) -> Tensor:
        """All ε, in the order of the samples or classes."""
        return self.largest * torch.sigmoid(self.raw)

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"smoothing": self.smoothing()}

    def targets(self, labels: Tensor, batch: Batch, n_classes: int) -> Tensor:
        hard = one_hot(labels, n_classes, self.raw.dtype) if labels.dim() == 1 else labels
        if self.per == "sample":
            epsilon = of_batch(self.smoothing(), batch, len(labels), "LabelSmoothing(per='sample')").unsqueeze(-1)
        elif len(self.raw) != n_classes:
            raise ValueError(
                f"LabelSmoothing(per='class') must be made for the {n_classes} classes of the network; got "
                f"{len(self.raw)}."
            )
        elif batch.targets.dim() == 1:
            epsilon = self.smoothing()[batch.targets].unsqueeze(-1)
        else:
            raise ValueError(
                "Targets must be class indices for LabelSmoothing(per='class'); "
                f"got shape {tuple(batch.targets.shape)}. Use per='sample' with soft targets."
            )
        return (1 - epsilon) * hard + epsilon / n_classes
