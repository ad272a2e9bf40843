"""Augmentation and normalisation of whole batches on their device, as callables that can be pickled.

They are arguments of :class:`calibrant.data.TensorStream`: :class:`CropAndFlip` for ``augment``, :class:`Mixup` for
``augment_batch`` and :class:`Normalise` for ``prepare``. Images stay uint8 until Mixup or Normalise converts them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.data.streams.batch import map_tensors, tensors_of


@dataclass(frozen=True)
class CropAndFlip:
    """A crop of the padded image at a random place, and a horizontal flip with probability ½.

    Images are padded with zeros (black, before normalisation, as in the code that the second paper extends). Crops have
    the size of the image. One gather operation crops all images of a batch.
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError(f"pad must be at least 0; got {self.pad}.")

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        count, _, height, width = inputs.shape
        device, drawn_on = inputs.device, generator.device
        corner = torch.randint(0, 2 * self.pad + 1, (2, count, 1), generator=generator, device=drawn_on).to(device)
        rows = corner[0] + torch.arange(height, device=device)
        columns = corner[1] + torch.arange(width, device=device)
        if self.flip:
            flipped = torch.rand(count, 1, generator=generator, device=drawn_on).to(device) < 0.5
            columns = torch.where(flipped, columns.flip(1), columns)
        padded = F.pad(inputs, (self.pad,) * 4)
        samples = torch.arange(count, device=device)[:, None, None]
        return padded[samples, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Normalise:
    """``(x − mean) / std`` for each channel, x scaled to [0, 1]; uint8 images become floats.

    Float images must be in [0, 1] already, as after :class:`Mixup`.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ValueError(f"std must be positive, one for each mean; got mean={self.mean} and std={self.std}.")

    def __call__(self, inputs: Tensor) -> Tensor:
        if inputs.shape[-3] != len(self.mean):
            raise ValueError(f"inputs must have {len(self.mean)} channels; got shape {tuple(inputs.shape)}.")
        x, largest = as_float(inputs)
        scale = _per_channel([1 / (largest * s) for s in self.std], x)
        return torch.addcmul(_per_channel([-m / s for m, s in zip(self.mean, self.std, strict=True)], x), x, scale)


@dataclass(frozen=True)
class Mixup:
    """Mixup (Zhang et al. 2018): ``λ·x + (1 − λ)·x'`` with the targets mixed in the same way, λ ~ Beta(α, α).

    x' is the batch in another order. As in the authors' code there is one λ for a batch. Targets are class
    probabilities, or class indices if ``n_classes`` is given. uint8 images become floats in [0, 1]. If inputs are a
    mapping or a tuple, all of its tensors are mixed alike. Use it as
    ``TensorStream(augment_batch=Mixup(1.0, n_classes))`` with a loss that takes soft targets.
    """

    alpha: float = 1.0
    n_classes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite; got {self.alpha}.")

    def __call__(self, inputs: Any, targets: Tensor, generator: torch.Generator) -> tuple[Any, Tensor]:
        input_tensors, drawn_on = tensors_of(inputs), generator.device
        for values in input_tensors:
            if not values.is_floating_point() and values.dtype != torch.uint8:
                raise ValueError(
                    f"Mixup needs inputs that can be averaged: floats, or uint8 images; got {values.dtype}. For "
                    "tokens, categories and masks, choose another method."
                )
        x = unit_range(input_tensors[0])  # sets the precision of the targets
        if targets.dim() == 1:
            if self.n_classes is None:
                raise ValueError("Mixup needs class probabilities as targets; got class indices. Give it n_classes.")
            targets = F.one_hot(targets, self.n_classes)
        soft = targets.to(x.dtype)
        # Beta(α, α) is G/(G + G') of two Gamma(α) draws; float64 avoids that both are 0 for a small α.
        gammas = torch._standard_gamma(
            torch.full((2,), self.alpha, dtype=torch.float64, device=drawn_on), generator=generator
        )
        share = (gammas[0] / gammas.sum()).to(x)
        order = torch.randperm(len(x), generator=generator, device=drawn_on).to(x.device)

        def mixed(values: Tensor) -> Tensor:
            return share * values + (1 - share) * values[order]

        return map_tensors(lambda values: mixed(unit_range(values)), inputs), mixed(soft)


def unit_range(inputs: Tensor) -> Tensor:
    """uint8 images as floats in [0, 1]; float images unchanged."""
    x, largest = as_float(inputs)
    return x if largest == 1 else x / largest


def as_float(inputs: Tensor) -> tuple[Tensor, int]:
    """Images as floats, and the largest value that they may have: 255 for those that were uint8, else 1."""
    if inputs.is_floating_point():
        return inputs, 1
    if inputs.dtype != torch.uint8:
        raise ValueError(f"images must be uint8, or floats in [0, 1]; got {inputs.dtype}.")
    return inputs.to(torch.get_default_dtype()), 255


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    """Constants that are created on the device; a copy from the host would wait for all queued work.

    They are not kept between calls, so that a graph capture or a tracer cannot leave its own tensors behind.
    """
    return torch.cat([like.new_full((1, 1, 1), value) for value in values])
