"""Labels that were flipped before anyone saw them, with the rate of flipping learned."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.bilevel.outer_variables.base import OuterVariable, of_batch
from calibrant.data.batch import Batch, Tensors
from calibrant.losses.classification import one_hot


class LabelNoise(OuterVariable):
    """The observed label is the true one or, at a learned rate, another: ``q_y = Σ_c T[c, y]·p_c``.

    The training loss sees q, the distribution of the *observed* label, so that p, the network's own output, is left to
    describe the true one: the forward correction of Patrini et al. 2017, who estimate T beforehand where it is an outer
    variable here. The outer loss sees p, so held-out labels should be clean, or cleaner than the training labels.

    ``T[c, c] = 1 − ε_c`` and ``T[c, y] = ε_c/(C − 1)`` for y ≠ c, ``ε = largest·σ(φ)``.

    Parameters
    ----------
    classes : int
        C, at least 2.
    per : {"model", "class", "matrix"}
        One rate for all; one for each *true* class; or all of T, a softmax in each row (memory n·C² in a step, and more
        freedom than most held-out sets can pin down).
    initial : float
        ε at the start, in every row.
    largest : float
        Bound on ε, below 1, but for ``"matrix"``. Beyond ``(C − 1)/C`` a label speaks against its own class.

    Samples whose labels are known to be right are marked in ``batch.hyper["trusted"]``, one truth value for each sample
    of the training set: for them the loss sees p itself.
    """

    def __init__(
        self,
        classes: int,
        *,
        per: Literal["model", "class", "matrix"] = "model",
        initial: float = 0.01,
        largest: float = 0.95,
    ) -> None:
        super().__init__()
        if per not in ("model", "class", "matrix"):
            raise ValueError(f"per must be 'model', 'class' or 'matrix'; got {per!r}.")
        if classes < 2:
            raise ValueError(f"Labels can only be flipped among at least 2 classes; got {classes}.")
        if not 0 < initial < largest < 1:
            raise ValueError(f"0 < initial < largest < 1 must hold; got initial={initial}, largest={largest}.")
        self.classes, self.per, self.largest = classes, per, largest
        if per == "matrix":
            start = math.log((1 - initial) * (classes - 1) / initial) * torch.eye(classes)
        else:
            start = torch.full((1 if per == "model" else classes,), math.log(initial / (largest - initial)))
        self.raw = nn.Parameter(start)

    def rate(self) -> Tensor:
        """ε of each true class, (C,): the probability that a label of that class was flipped."""
        if self.per == "matrix":
            return 1 - self.raw.softmax(1).diagonal()
        return (self.largest * torch.sigmoid(self.raw)).expand(self.classes)

    def transition(self) -> Tensor:
        """T, (C, C): rows are true classes, columns observed labels, and each row sums to 1."""
        if self.per == "matrix":
            return self.raw.softmax(1)
        rate = self.rate().unsqueeze(1)
        own = torch.eye(self.classes, dtype=rate.dtype, device=rate.device)
        return own * (1 - rate) + (1 - own) * rate / (self.classes - 1)

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"transition": self.transition()} if self.per == "matrix" else {"rate": self.rate()}

    def outputs(self, logits: Tensor, batch: Batch) -> Tensor:
        """``log q``, which is its own logarithm of a softmax."""
        if logits.shape[-1] != self.classes:
            raise ValueError(f"LabelNoise was made for {self.classes} classes; the network has {logits.shape[-1]}.")
        log_probs = torch.log_softmax(logits, dim=-1)
        # not logaddexp: its second derivative is NaN where one term is smaller by more than the largest exponent
        observed = torch.stack(self._kept_and_flipped(log_probs)).logsumexp(0)
        if "trusted" not in batch.hyper:
            return observed
        trusted = of_batch(batch.hyper["trusted"], batch, len(logits), "The mark of trusted labels")
        return torch.where(trusted.unsqueeze(-1), log_probs, observed)

    def suspicion(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        """The posterior probability that an observed label is wrong: ``1 − T[y, y]·p_y/q_y``, one a sample.

        ``log_probs`` are the network's own, ``log_softmax(logits)``. A network that knows its labels by heart suspects
        none of them: probabilities from cross-fitting tell more than those of training.
        """
        kept, flipped = self._kept_and_flipped(log_probs)
        return torch.sigmoid(flipped - kept).gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    def _kept_and_flipped(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """``log(T[y, y]·p_y)`` and ``log(Σ_{c≠y} T[c, y]·p_c)`` for each y."""
        if self.per == "matrix":
            log_t = torch.log_softmax(self.raw, dim=1)
            own = torch.eye(self.classes, dtype=torch.bool, device=log_t.device)
            flipped = torch.logsumexp(log_probs.unsqueeze(-1) + log_t.masked_fill(own, -torch.inf), dim=-2)
            return log_probs + log_t.diagonal(), flipped
        log_rate = F.logsigmoid(self.raw) + math.log(self.largest / (self.classes - 1))
        kept = log_probs + torch.log1p(-self.largest * torch.sigmoid(self.raw))
        return kept, logsumexp_of_others(log_probs + log_rate)


def logsumexp_of_others(x: Tensor) -> Tensor:
    """``log Σ_{c≠y} e^{x_c}`` for each y, in linear time.

    ``log(Σ − e^{x_y})`` loses its digits only where y is the largest: that one entry is summed afresh.
    """
    largest = one_hot(x.detach().argmax(-1), x.shape[-1], torch.bool)
    total = torch.logsumexp(x, dim=-1, keepdim=True)
    share = (x - total).masked_fill(largest, -torch.inf)  # at most ½ elsewhere
    rest = torch.logsumexp(x.masked_fill(largest, -torch.inf), dim=-1, keepdim=True)
    return torch.where(largest, rest, total + torch.log1p(-torch.exp(share)))
