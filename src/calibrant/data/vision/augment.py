"""Augmentation and normalisation of whole batches on the device where they lie, as callables that can be pickled.

They plug into :class:`calibrant.data.TensorStream`: :class:`CropAndFlip` is its ``augment`` and :class:`Mixup` its
``augment_batch``. Images stay uint8 until :class:`Normalise`, which comes last, turns them into floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class CropAndFlip:
    """A crop of the padded image at a random place, and a horizontal flip with probability ½.

    Images are padded with zeros (black, before normalisation, as in the code that the second paper extends) or by
    reflection. Crops have the size of the image. All images of a batch are taken by one gather.
    """

    pad: int = 4
    flip: bool = True
    padding: Literal["zero", "reflect"] = "zero"

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError(f"pad must be at least 0; got {self.pad}.")
        if self.padding not in ("zero", "reflect"):
            raise ValueError(f"padding must be 'zero' or 'reflect'; got {self.padding!r}.")

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        count, _, height, width = inputs.shape
        device, drawn_on = inputs.device, generator.device
        corner = torch.randint(0, 2 * self.pad + 1, (2, count, 1), generator=generator, device=drawn_on).to(device)
        rows = corner[0] + torch.arange(height, device=device)
        columns = corner[1] + torch.arange(width, device=device)
        if self.flip:
            flipped = torch.rand(count, 1, generator=generator, device=drawn_on).to(device) < 0.5
            columns = torch.where(flipped, columns.flip(1), columns)
        if self.padding == "reflect":
            rows, columns = _reflected(rows - self.pad, height), _reflected(columns - self.pad, width)
            padded = inputs
        else:
            padded = F.pad(inputs, (self.pad,) * 4)
        samples = torch.arange(count, device=device)[:, None, None]
        return padded[samples, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Normalise:
    """``(x − mean) / std`` for each channel, x scaled to [0, 1]; uint8 images become floats.

    Float images are taken to lie in [0, 1] already, as :class:`Mixup` leaves them.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ValueError(f"std must be positive, one for each mean; got mean={self.mean} and std={self.std}.")

    def __call__(self, inputs: Tensor) -> Tensor:
        x = unit_range(inputs)
        if x.shape[-3] != len(self.mean):
            raise ValueError(f"inputs must have {len(self.mean)} channels; got shape {tuple(inputs.shape)}.")
        mean, std = _constants((self.mean, self.std), x.dtype, x.device)
        return (x - mean) / std


@dataclass(frozen=True)
class Mixup:
    """Mixup (Zhang et al. 2018): ``λ·x + (1 − λ)·x'`` with the targets mixed in the same way, λ ~ Beta(α, α).

    x' is the batch in another order. As in the authors' code there is one λ for a batch. Targets are class
    probabilities, or class indices if ``classes`` says how many classes there are. uint8 images become floats in
    [0, 1]. Use it as ``TensorStream(augment_batch=Mixup(1.0, classes))`` with a loss that takes soft targets.
    """

    alpha: float = 1.0
    classes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha must be positive and finite; got {self.alpha}.")

    def __call__(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, drawn_on = unit_range(inputs), generator.device
        if targets.dim() == 1:
            if self.classes is None:
                raise ValueError("Mixup needs class probabilities as targets; for class indices give it `classes`.")
            targets = F.one_hot(targets, self.classes)
        soft = targets.to(x.dtype)
        # Beta(α, α) is G/(G + G') of two Gamma(α) draws; in float64 a small α does not make both of them 0.
        gammas = torch._standard_gamma(
            torch.full((2,), self.alpha, dtype=torch.float64, device=drawn_on), generator=generator
        )
        share = (gammas[0] / gammas.sum()).to(x)
        order = torch.randperm(len(x), generator=generator, device=drawn_on).to(x.device)
        return share * x + (1 - share) * x[order], share * soft + (1 - share) * soft[order]


@cache
def _constants(values: tuple[tuple[float, ...], ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """One value for each channel, copied to the device once: a copy at each batch would hold up a GPU."""
    return tuple(torch.tensor(own, dtype=dtype, device=device).view(-1, 1, 1) for own in values)


def unit_range(inputs: Tensor) -> Tensor:
    """uint8 images as floats in [0, 1]; float images as they are."""
    if inputs.is_floating_point():
        return inputs
    if inputs.dtype != torch.uint8:
        raise ValueError(f"images must be uint8, or floats in [0, 1]; got {inputs.dtype}.")
    return inputs.to(torch.get_default_dtype()) / 255


def _reflected(position: Tensor, size: int) -> Tensor:
    """Positions outside 0 … size − 1, reflected at the first and the last pixel."""
    position = position.abs()
    return torch.where(position >= size, 2 * (size - 1) - position, position)
