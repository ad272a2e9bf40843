"""Changed images for testing: noise, blur, contrast and brightness, each at two strengths.

The strengths were fixed before any network was trained. They are mild: a network that was trained on clean CIFAR-10
should still be right more often than not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.data.vision.augment import unit_range


def gaussian_noise(images: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """Independent Gaussian noise of standard deviation ``strength`` on every pixel and channel.

    The noise is drawn on the images' device and is a function of ``seed`` there.
    """
    generator = torch.Generator(images.device).manual_seed(seed)
    x = unit_range(images)
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    return _like(x + strength * noise, images)


def gaussian_blur(images: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """Convolution with a Gaussian of standard deviation ``strength`` pixels, reflected at the borders."""
    x = unit_range(images)
    channels, radius = x.shape[1], min(math.ceil(3 * strength), *(size - 1 for size in x.shape[2:]))
    offsets = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    kernel = torch.softmax(-offsets.square() / (2 * strength**2), dim=0)
    x = F.pad(x, (radius,) * 4, mode="reflect")
    for shape in ((1, 1, -1, 1), (1, 1, 1, -1)):  # rows, then columns
        x = F.conv2d(x, kernel.view(shape).expand(channels, 1, *kernel.view(shape).shape[2:]), groups=channels)
    return _like(x, images)


def contrast(images: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """Each pixel's distance from the mean of its image and channel times ``strength``; 1 changes nothing."""
    x = unit_range(images)
    middle = x.mean((2, 3), keepdim=True)
    return _like(middle + strength * (x - middle), images)


def brightness(images: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """Every pixel times ``strength``: below 1 darker, above 1 brighter."""
    return _like(strength * unit_range(images), images)


SHIFTS: dict[str, Callable[..., Tensor]] = {
    "noise-1": partial(gaussian_noise, strength=0.02),
    "noise-2": partial(gaussian_noise, strength=0.04),
    "blur-1": partial(gaussian_blur, strength=0.5),
    "blur-2": partial(gaussian_blur, strength=0.8),
    "contrast-1": partial(contrast, strength=0.5),
    "contrast-2": partial(contrast, strength=0.3),
    "brightness-1": partial(brightness, strength=0.5),
    "brightness-2": partial(brightness, strength=0.3),
}
"""The shifts of the experiments, by name: ``shift(images, seed=0)`` for uint8 images or floats in [0, 1].

The result has the type and range of its input.
"""


def _like(x: Tensor, images: Tensor) -> Tensor:
    x = x.clamp(0, 1)
    return x if images.is_floating_point() else (255 * x).round().to(torch.uint8)
