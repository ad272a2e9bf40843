"""Labelled images of one size: read from a folder with one subfolder for each class, and split into parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.base.words import listed
from calibrant.data.splits.stratified import split_indices

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}
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


def load_folder(
    folder: str | os.PathLike[str],
    size: int | tuple[int, int] | None = None,
    *,
    names: Sequence[str] | None = None,
) -> Images:
    """Read images from ``folder/<class>/…``, at any depth. Classes are sorted by name, and images by path.

    All images are held in memory as RGB bytes. For more images than fit there, pass a DataLoader to
    :func:`calibrant.fit`.

    Parameters
    ----------
    folder : str or path
        The folder with a subfolder for each class.
    size : int or (height, width), optional
        Each image is scaled to cover this size, and cropped around its centre. None keeps the images as they are; they
        must then have the same size.
    names : sequence of str, optional
        The classes in their order, such as ``train.names`` for a folder of test images. By default the subfolders.

    Returns
    -------
    Images
        ``mean`` and ``std`` are those of these images. Normalise test images with those of the training images.

    Raises
    ------
    ValueError
        If there are no classes or images, or a file is damaged; the message names it.
    """
    place = Path(folder).expanduser()
    classes = _classes(place, names)
    height_width = (size, size) if isinstance(size, int) else size
    if height_width is not None and (len(height_width) != 2 or min(height_width) < 1):
        raise ValueError(f"size must be a positive number of pixels, or (height, width); got {size!r}.")
    files = [(path, label) for label, name in enumerate(classes) for path in _files(place / name)]
    if not files:
        raise ValueError(
            f"The folders of classes in {place} must hold files ending in {', '.join(ENDINGS)}; got no such file."
        )
    pixels = _read([path for path, _ in files], height_width)
    inputs = torch.from_numpy(np.array(pixels.transpose(0, 3, 1, 2), order="C"))
    mean, std = channel_statistics(pixels)
    return Images(inputs, torch.tensor([label for _, label in files], device="cpu"), tuple(classes), mean, std)


def _classes(place: Path, names: Sequence[str] | None) -> list[str]:
    if not place.is_dir():
        raise ValueError(f"There is no folder {place}. Give a folder with a subfolder for each class.")
    subfolders = sorted(path.name for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not subfolders:
        raise ValueError(f"{place} must have a subfolder for each class; got none.")
    if names is None and {name.lower() for name in subfolders} <= _PARTS:
        raise ValueError(
            f"The subfolders of {place} must be classes; got parts of a data set ({', '.join(subfolders)}). Load each "
            f"of them, such as {place / subfolders[0]}."
        )
    if names is None:
        return subfolders
    if unknown := [name for name in subfolders if name not in names]:
        raise ValueError(
            f"The subfolders of {place} must be among the classes {listed(names)}; got {listed(unknown)}. Rename or "
            "remove them."
        )
    return list(names)


def _files(place: Path) -> list[Path]:
    """The images below a folder, without hidden files; none if there is no such folder."""
    images = (path for path in place.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    return sorted(path for path in images if not any(part.startswith(".") for part in path.relative_to(place).parts))


def _read(paths: Sequence[Path], size: tuple[int, int] | None) -> np.ndarray:
    """RGB pixels, (n, height, width, 3)."""
    Image = pillow()
    images: np.ndarray | None = None
    for row, path in enumerate(paths):
        try:
            with Image.open(path) as file:
                pixels = _pixels(file, size)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path} is not a whole image: {error}. Repair or remove it.") from error
        if images is None:
            images = np.empty((len(paths), *pixels.shape), dtype=np.uint8)
        if pixels.shape != images.shape[1:]:
            raise ValueError(
                f"{path} has {pixels.shape[0]} × {pixels.shape[1]} pixels, and the images before it have "
                f"{images.shape[1]} × {images.shape[2]}. Give all images one size with size=…."
            )
        images[row] = pixels
    assert images is not None
    return images


def _pixels(file: Any, size: tuple[int, int] | None) -> np.ndarray:
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(file).convert("RGB")
    return np.asarray(upright if size is None else ImageOps.fit(upright, (size[1], size[0])))


def pillow() -> Any:
    """The module ``PIL.Image``; without Pillow, an error that says how to install it."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(
            "Reading image files needs Pillow. Install it with: pip install 'calibrant[vision]'."
        ) from None
    return Image
