"""Reading the image folders of Tiny-ImageNet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

Listed = list[tuple[Path, int]]


def train_files(folder: Path, classes: Mapping[str, int]) -> Listed:
    """``train/<class>/images/*.JPEG``, class by class, in the order of their names."""
    return [
        (path, label)
        for name, label in classes.items()
        for path in sorted((folder / name / "images").glob("*.JPEG"), key=_number)
    ]


def test_files(folder: Path, classes: Mapping[str, int]) -> Listed:
    """``val/images/*.JPEG``, with the classes from ``val/val_annotations.txt``."""
    lines = (folder / "val_annotations.txt").read_text().splitlines()
    fields = [line.split("\t") for line in lines if line.strip()]
    if unknown := [line for line in fields if len(line) < 2 or line[1] not in classes]:
        raise ValueError(f"val_annotations.txt must name a file and a known class in each line; got {unknown[0]}")
    return [(folder / "images" / line[0], classes[line[1]]) for line in fields]


def class_names(wnids: Path, words: Path) -> tuple[str, ...]:
    """A word for each class, from ``words.txt`` if it has one, otherwise the identifier of the class."""
    known: dict[str, str] = {}
    if words.is_file():
        known = dict(line.split("\t", 1) for line in words.read_text().splitlines() if "\t" in line)
    return tuple(known.get(name, name).split(",")[0] for name in wnids.read_text().split())


def read_labelled_files(listed: Listed) -> tuple[np.ndarray, np.ndarray]:
    """All images as ``(n, height, width, 3)``; grey ones get three equal channels."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(
            "Reading image files needs Pillow. Install it with: pip install 'calibrant[vision]'."
        ) from None
    if not listed:
        raise ValueError("it lists no images")
    images: np.ndarray | None = None
    for row, (path, _) in enumerate(listed):
        with Image.open(path) as file:
            pixels = np.asarray(file.convert("RGB"))
        if images is None:
            images = np.empty((len(listed), *pixels.shape), dtype=np.uint8)
        if pixels.shape != images.shape[1:]:
            raise ValueError(
                f"{path.name} must have shape {images.shape[1:]} like the images before it; got {pixels.shape}"
            )
        images[row] = pixels
    assert images is not None
    return images, np.array([label for _, label in listed])


def _number(path: Path) -> tuple[int, str]:
    """Sorts ``n01_2.JPEG`` before ``n01_10.JPEG``."""
    number = path.stem.rpartition("_")[2]
    return (int(number) if number.isdigit() else -1, path.name)
