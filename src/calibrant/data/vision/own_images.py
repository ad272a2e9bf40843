"""Reading your own images from a folder with one subfolder for each class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.base.words import listed
from calibrant.data.vision.images import Images, channel_statistics

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}


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
