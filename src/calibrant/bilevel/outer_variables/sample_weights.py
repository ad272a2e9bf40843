"""One learned weight per training sample, the first paper's φ."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant._settings import check_choice
from calibrant.bilevel.outer_variables.base import OuterVariable, of_batch
from calibrant.data.batch import Batch, Tensors


class SampleWeights(OuterVariable):
    """One weight per training sample: ``mean_i w_i·l_i`` (Eq. (10), Sanguin et al. 2024).

    Parameters
    ----------
    samples : int
        The number of training samples.
    form : {"clip", "sigmoid"}
        ``"clip"``: φ is the weights, clipped to [0, 1] after each outer step, as in Fig. 3 of the paper.
        ``"sigmoid"``: ``w = σ(φ)``, which is smooth and never exactly 0 or 1.
    initial_weight : float, optional
        In [0, 1] for ``"clip"`` (default: 1), and in (0, 1) for ``"sigmoid"`` (default: 0.9). The paper does not state
        its w⁰.
    prior_strength : float
        λ of a prior at 1: ``λ/2·mean_i (w_i − 1)²`` is added to the outer loss, so a weight differs from 1 only if
        held-out data support it. The paper has no prior (0). The hypergradient and the gradient of the prior are both
        of order 1/n, so λ does not depend on n.
    """

    needs_index = True

    def __init__(
        self,
        samples: int,
        *,
        form: Literal["clip", "sigmoid"] = "clip",
        initial_weight: float | None = None,
        prior_strength: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("form", form, ("clip", "sigmoid"))
        weight = (1.0 if form == "clip" else 0.9) if initial_weight is None else initial_weight
        inside = 0 <= weight <= 1 if form == "clip" else 0 < weight < 1
        if not inside:
            allowed = "[0, 1]" if form == "clip" else "(0, 1)"
            raise ValueError(f"initial_weight must be in {allowed} for form={form!r}; got {weight}.")
        if not 0 <= prior_strength < math.inf:
            raise ValueError(f"prior_strength must be at least 0 and finite; got {prior_strength}.")
        self.samples, self.form, self.prior_strength = samples, form, prior_strength
        start = weight if form == "clip" else math.log(weight / (1 - weight))
        self.raw = nn.Parameter(torch.full((samples,), start, device="cpu"))

    def weights(self) -> Tensor:
        """All weights, in the order of the samples."""
        return self.values()

    def values(self) -> Tensor:
        """The free values in [0, 1] from which the weights are computed; here the weights themselves."""
        return self.raw if self.form == "clip" else torch.sigmoid(self.raw)

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        size = len(losses) if losses.dim() else None
        return losses * of_batch(self.weights(), batch, size, "SampleWeights")

    def prior(self) -> Tensor | float:
        if self.prior_strength == 0:
            return 0.0
        return 0.5 * self.prior_strength * (self.values() - 1).square().mean()

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"weights": self.weights()}

    def project(self, values: Tensors) -> Tensors:
        return {k: v.clamp(0.0, 1.0) for k, v in values.items()} if self.form == "clip" else values
