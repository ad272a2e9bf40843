"""A learned factor between the network's logits and the training loss: temperature scaling as part of training."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from calibrant.bilevel.outer_variables.base import OuterVariable
from calibrant.data.batch import Batch, Tensors


class LogitScale(OuterVariable):
    """The training loss sees ``s·logits``; the outer loss and the classifier see the logits themselves.

    An over-confident network calls for ``s > 1``: training then reaches the same fit with smaller logits. At the
    minimum of an unregularised training loss the logits are ``1/s`` times those of ``s = 1``, which is temperature
    scaling with ``T = s``, without a step after training. The order of the classes and the error are hardly touched.

    Parameters
    ----------
    initial : float
        s at the start.
    largest : float
        s stays between ``1/largest`` and ``largest``.
    per : int, optional
        One factor for each of so many classes; None is one for all.
    """

    def __init__(self, initial: float = 1.0, *, largest: float = 4.0, per: int | None = None) -> None:
        super().__init__()
        if not 1 < largest < math.inf or not 1 / largest <= initial <= largest:
            raise ValueError(
                "largest must be finite and above 1, and initial between 1/largest and largest; "
                f"got initial={initial} and largest={largest}."
            )
        self.largest = largest
        shape = () if per is None else (per,)
        self.log_scale = nn.Parameter(torch.full(shape, math.log(initial)))

    def outputs(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits * self.log_scale.exp()

    def project(self, values: Tensors) -> Tensors:
        bound = math.log(self.largest)
        return values | {"log_scale": values["log_scale"].clamp(-bound, bound)}

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"scale": self.log_scale.exp()}
