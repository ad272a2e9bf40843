"""Random distortions of held-out images, to learn the confidence for images unlike the training set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.data.vision.augment import unit_range


@dataclass(frozen=True)
class Distort:
    """One random distortion for each image, of random strength.

    The kinds are an affine map (rotation, shear, zoom), a grey patch, fewer grey levels, inverted bright pixels,
    shuffled tiles and mixed colour channels. None is noise, blur, brightness or contrast, so that these
    stay a test of unseen changes. Images are uint8 or floats in [0, 1]; the result has floats in [0, 1].

    Parameters
    ----------
    strength : float
        Largest strength, in (0, 1]; each image draws its own, uniform between 0 and this.
    share : float
        The share of the images that are distorted; the others stay as they are.
    """

    strength: float = 1.0
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 1:
            raise ValueError(f"strength must be above 0 and at most 1; got {self.strength}.")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie between 0 and 1; got {self.share}.")

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        x = unit_range(inputs)
        draws = torch.rand(len(x), 9, generator=generator, device=generator.device).to(x)
        kind = (draws[:, 0] * len(_KINDS)).long().clamp_max(len(_KINDS) - 1)
        strength = draws[:, 1] * self.strength
        result = x
        for number, change in enumerate(_KINDS):
            result = torch.where((kind == number).view(-1, 1, 1, 1), change(x, strength, draws[:, 3:]), result)
        return torch.where((draws[:, 2] < self.share).view(-1, 1, 1, 1), result, x)


def _affine(x: Tensor, strength: Tensor, draws: Tensor) -> Tensor:
    """Rotation by up to 45°, shear by up to 0.5 and zoom by up to 1.6 either way."""
    signs = 2 * draws - 1
    angle, shear = math.pi / 4 * strength * signs[:, 0], 0.5 * strength * signs[:, 1]
    zoom = torch.exp(math.log(1.6) * strength * signs[:, 2])
    cos, sin, zero = angle.cos() / zoom, angle.sin() / zoom, torch.zeros_like(angle)
    rows = [torch.stack(row, 1) for row in ((cos, shear - sin, zero), (sin, cos, zero))]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _patch(x: Tensor, strength: Tensor, draws: Tensor) -> Tensor:
    """A grey square with sides of up to 0.7 of the image's."""
    inside = torch.ones(1, dtype=torch.bool, device=x.device)
    for axis, size in ((0, x.shape[2]), (1, x.shape[3])):
        side = (0.7 * size * strength).view(-1, 1)
        first = draws[:, axis : axis + 1] * (size - side)
        place = torch.arange(size, device=x.device, dtype=x.dtype)
        inside_axis = (place >= first) & (place < first + side)
        inside = inside & (inside_axis[:, None, :, None] if axis == 0 else inside_axis[:, None, None, :])
    return torch.where(inside, 0.5, x)


def _posterise(x: Tensor, strength: Tensor, draws: Tensor) -> Tensor:
    """Between 32 and 2 levels of each channel."""
    steps = (torch.exp2(5 - 4 * strength) - 1).round().view(-1, 1, 1, 1)
    return (x * steps).round() / steps


def _solarise(x: Tensor, strength: Tensor, draws: Tensor) -> Tensor:
    """Pixels above ``1 − strength`` inverted."""
    return torch.where(x > (1 - strength).view(-1, 1, 1, 1), 1 - x, x)


def _tiles(x: Tensor, strength: Tensor, draws: Tensor) -> Tensor:
    """Some of the 16 tiles of the image, up to three quarters of them, replaced by their neighbours."""
    count, _, height, width = x.shape
    moved = torch.roll(x, (height // 4, width // 4), (2, 3))
    tile_rows = torch.arange(height, device=x.device) * 4 // height
    tile_columns = torch.arange(width, device=x.device) * 4 // width
    tile = (tile_rows[:, None] * 4 + tile_columns).to(x)
    order = torch.frac(tile * 0.6180339887 + draws[:, 0].view(count, 1, 1))  # a fixed shuffle, turned by the draw
    return torch.where((order < 0.75 * strength.view(count, 1, 1))[:, None], moved, x)


def _colours(x: Tensor, strength: Tensor, draws: Tensor) -> Tensor:
    """Each channel mixed with the next one, or with the mean of all; images of one channel do not change."""
    other = torch.where((draws[:, 0] < 0.5).view(-1, 1, 1, 1), x.roll(1, 1), x.mean(1, keepdim=True))
    return x + strength.view(-1, 1, 1, 1) * (other - x)


_KINDS: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
    _affine,
    _patch,
    _posterise,
    _solarise,
    _tiles,
    _colours,
)
