"""A learned scale of the logits in the training loss: temperature scaling as part of training."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from calibrant.bilevel.outer_variables.base import OuterVariable
from calibrant.data.batch import Batch, Tensors


class LogitScale(OuterVariable):
    """The training loss sees ``s·logits``; the outer loss and the classifier see the logits themselves.

    For an over-confident network ``s > 1`` helps: training then reaches the same fit with smaller logits. At the
    minimum of an unregularised training loss, the logits are ``1/s`` times those of ``s = 1``. This is temperature
    scaling with ``T = s``, but without a step after training. It hardly changes the order of the classes and the error.

    Parameters
    ----------
    initial : float
        The first value of s.
    largest : float
        s stays between ``1/largest`` and ``largest``.
    n_classes : int, optional
        The number of classes, for one factor per class. None uses one factor for all classes.
    """

    def __init__(self, initial: float = 1.0, *, largest: float = 4.0, n_classes: int | None = None) -> None:
        super().__init__()
        if not 1 < largest < math.inf or not 1 / largest <= initial <= largest:
            raise ValueError(
                "largest must be finite and above 1, and initial between 1/largest and largest; "
                f"got {initial=} and {largest=}."
            )
        self.largest = largest
        shape = () if n_classes is None else (n_classes,)
        self.log_scale = nn.Parameter(torch.full(shape, math.log(initial), device="cpu"))

    def outputs(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits * self.log_scale.exp()

    def project(self, values: Tensors) -> Tensors:
        bound = math.log(self.largest)
        return values | {"log_scale": values["log_scale"].clamp(-bound, bound)}

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"scale": self.log_scale.exp()}
