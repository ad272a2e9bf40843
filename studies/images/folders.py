"""Reading the image folders of Tiny-ImageNet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from calibrant.data.vision.images import pillow

Listed = list[tuple[Path, int]]
ENDINGS = (".jpeg", ".jpg", ".png")


def files_by_class(folder: Path, classes: Mapping[str, int], *, every: bool = True) -> Listed:
    """Images of each class, in the order of their names: from ``<class>/images``, or from ``<class>`` itself.

    With ``every``, a class without images is an error.
    """
    listed: Listed = []
    for name, label in classes.items():
        inside = folder / name / "images"
        own = _images(inside if inside.is_dir() else folder / name)
        if every and not own:
            raise ValueError(f"{folder / name} has no images")
        listed += [(path, label) for path in own]
    return listed


def test_files(folder: Path, classes: Mapping[str, int]) -> Listed:
    """``val/images/*.JPEG``, with the classes from ``val/val_annotations.txt``.

    Without that folder, the images are in a folder of each class, as a common script sorts them.
    """
    if not (folder / "images").is_dir():
        return files_by_class(folder, classes, every=False)
    lines = (folder / "val_annotations.txt").read_text(encoding="utf-8").splitlines()
    fields = [line.split("\t") for line in lines if line.strip()]
    if unknown := [line for line in fields if len(line) < 2 or line[1] not in classes]:
        raise ValueError(f"val_annotations.txt must name a file and a known class in each line; got {unknown[0]}")
    return [(folder / "images" / line[0], classes[line[1]]) for line in fields]


def _images(folder: Path) -> list[Path]:
    """The image files of a folder, without hidden files such as ``._n01_0.JPEG``, which some systems add."""
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and not path.name.startswith("."))
    return sorted(found, key=_number)


def class_names(wnids: Path, words: Path) -> tuple[str, ...]:
    """A word for each class, from ``words.txt`` if it has one, otherwise the identifier of the class."""
    known: dict[str, str] = {}
    if words.is_file():
        known = dict(line.split("\t", 1) for line in words.read_text(encoding="utf-8").splitlines() if "\t" in line)
    return tuple(known.get(name, name).split(",")[0] for name in wnids.read_text(encoding="utf-8").split())


def read_labelled_files(listed: Listed) -> tuple[np.ndarray, np.ndarray]:
    """All images as ``(n, height, width, 3)``; grey ones get three equal channels."""
    Image = pillow()
    if not listed:
        raise ValueError("it lists no images")
    images: np.ndarray | None = None
    for row, (path, _) in enumerate(listed):
        try:
            with Image.open(path) as file:
                width, height = file.size
                shape = (height, width, 3)
                if images is None:
                    images = np.empty((len(listed), *shape), dtype=np.uint8)
                if shape == images.shape[1:]:  # otherwise it need not be decoded
                    images[row] = np.asarray(file.convert("RGB"))
        except FileNotFoundError:
            raise ValueError(f"{path} is missing") from None
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path} is not a whole image: {error}") from error
        if shape != images.shape[1:]:
            raise ValueError(f"{path} must have shape {images.shape[1:]} like the images before it; got {shape}")
    assert images is not None
    return images, np.array([label for _, label in listed])


def _number(path: Path) -> tuple[int, str]:
    """Sorts ``n01_2.JPEG`` before ``n01_10.JPEG``."""
    number = path.stem.rpartition("_")[2]
    return (int(number) if number.isdigit() else -1, path.name)
