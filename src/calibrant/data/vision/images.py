"""Labelled images of one size, and splitting them into training, validation and meta-validation parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.data.splits.stratified import split_indices

PIECE = 1000
"""Number of images whose pixels are counted at once."""


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images of one size.

    ``inputs`` is uint8 of shape ``(n, channels, height, width)``, ``labels`` holds class indices and ``names`` the
    classes' names. ``mean`` and ``std`` are those of each channel over the whole training part, for pixels scaled to
    [0, 1], for all parts: see :class:`calibrant.data.vision.Normalise`. ``noisy`` holds other labels of the same
    images, some of them wrong, or None.
    """

    inputs: Tensor
    labels: Tensor
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    noisy: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.names)

    def select(self, index: Tensor | np.ndarray) -> Images:
        """The images with these indices, in this order."""
        rows = torch.as_tensor(index, device=self.labels.device)
        noisy = None if self.noisy is None else self.noisy[rows]
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows], noisy=noisy)

    def sample(self, count: int, seed: int) -> Images:
        """``count`` images drawn without replacement, every class in proportion; all images if there are fewer."""
        if count >= len(self):
            return self
        (rows,) = split_indices(len(self), (count,), seed=seed, stratify=self.labels.cpu().numpy())
        return self.select(rows)

    def to(self, device: torch.device | str) -> Images:
        """The same images on another device."""
        noisy = None if self.noisy is None else self.noisy.to(device)
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device), noisy=noisy)


class Parts(NamedTuple):
    """The parts of a training set."""

    train: Images
    val: Images
    meta_val: Images


def split(images: Images, seed: int, sizes: tuple[float, float, float] = (0.8, 0.1, 0.1)) -> Parts:
    """Split images into training, validation and meta-validation parts, with every class in proportion.

    The default sizes, 8:1:1, are those of the second paper. Methods without an outer level train on the same 80 % as
    the others.
    """
    rows = split_indices(len(images), sizes, seed=seed, stratify=images.labels.cpu().numpy())
    return Parts(*(images.select(part) for part in rows))


def channel_statistics(pixels: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, exactly, from the counts of the 256 values."""
    channels = range(pixels.shape[-1])
    counts = np.zeros((len(channels), 256))
    for begin in range(0, len(pixels), PIECE):  # bincount needs eight bytes for each pixel
        piece = pixels[begin : begin + PIECE]
        counts += [np.bincount(piece[..., channel].reshape(-1), minlength=256) for channel in channels]
    share, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ values
    std = np.sqrt([channel_share @ (values - middle) ** 2 for channel_share, middle in zip(share, mean, strict=True)])
    return tuple(mean.tolist()), tuple(std.tolist())
