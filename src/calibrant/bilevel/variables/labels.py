"""Learned label noise and label smoothing."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.base.classes import logsumexp_of_others, one_hot
from calibrant.base.settings import check_choice
from calibrant.bilevel.variables.base import OuterVariable, of_batch
from calibrant.data.streams.batch import Batch, Tensors


class LabelNoise(OuterVariable):
    """Label noise with learned rates: ``q_y = Σ_c T[c, y]·p_c``.

    p is the network's output, and q is the distribution of the observed label, which may have been flipped. The
    training loss uses q, so p learns the distribution of the true label. This is the forward correction of Patrini et
    al. 2017, who estimate T beforehand; here T is an outer variable. The outer loss uses p, so held-out labels should
    be clean, or cleaner than the training labels.

    ``T[c, c] = 1 − ε_c`` and ``T[c, y] = ε_c/(C − 1)`` for y ≠ c, with ``ε = largest·σ(φ)``.

    If the labels of some samples are known to be correct, set ``batch.hyper["trusted"]`` to one bool per training
    sample. For trusted samples the loss uses p itself.

    Parameters
    ----------
    n_classes : int
        C, at least 2.
    per : {"model", "class"}
        One rate for all classes, or one rate for each *true* class.
    initial : float
        The first value of ε.
    largest : float
        The upper bound on ε, below 1. With ε above ``(C − 1)/C``, a label is evidence against its own class.
    """

    def __init__(
        self, n_classes: int, *, per: Literal["model", "class"] = "model", initial: float = 0.01, largest: float = 0.95
    ) -> None:
        super().__init__()
        check_choice("per", per, ("model", "class"))
        if n_classes < 2:
            raise ValueError(f"n_classes must be at least 2; got {n_classes}.")
        if not 0 < initial < largest < 1:
            raise ValueError(f"initial and largest must satisfy 0 < initial < largest < 1; got {initial=}, {largest=}.")
        self.n_classes, self.largest = n_classes, largest
        rates = 1 if per == "model" else n_classes
        self.raw = nn.Parameter(torch.full((rates,), math.log(initial / (largest - initial)), device="cpu"))

    def rate(self) -> Tensor:
        """ε of each true class, with shape (C,): the probability that a label of that class was flipped."""
        return (self.largest * torch.sigmoid(self.raw)).expand(self.n_classes)

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"rate": self.rate()}

    def outputs(self, logits: Tensor, batch: Batch) -> Tensor:
        """``log q``, which equals its own log-softmax, so it can be used as logits."""
        if logits.shape[-1] != self.n_classes:
            raise ValueError(
                f"LabelNoise must be made for the {logits.shape[-1]} classes of the network; got {self.n_classes} "
                "classes."
            )
        log_probs = torch.log_softmax(logits, dim=-1)
        # logaddexp has a second derivative of NaN if one term is much smaller than the other.
        observed = torch.stack(self._kept_and_flipped(log_probs)).logsumexp(0)
        if "trusted" not in batch.hyper:
            return observed
        trusted = of_batch(batch.hyper["trusted"], batch, len(logits), 'hyper["trusted"]')
        return torch.where(trusted.unsqueeze(-1), log_probs, observed)

    def suspicion(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        """The posterior probability that an observed label is wrong: ``1 − T[y, y]·p_y/q_y`` per sample.

        ``log_probs`` are ``log_softmax(logits)`` of the network. A network that has memorised its training labels
        suspects none of them, so use cross-fitted probabilities for training samples.
        """
        kept, flipped = self._kept_and_flipped(log_probs)
        return torch.sigmoid(flipped - kept).gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    def _kept_and_flipped(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """``log(T[y, y]·p_y)`` and ``log(Σ_{c≠y} T[c, y]·p_c)`` for each y."""
        log_rate = F.logsigmoid(self.raw) + math.log(self.largest / (self.n_classes - 1))
        kept = log_probs + torch.log1p(-self.largest * torch.sigmoid(self.raw))
        return kept, logsumexp_of_others(log_probs + log_rate)


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
        self, count: int, *, per: Literal["sample", "class"] = "sample", initial: float = 0.01, largest: float = 1.0
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
