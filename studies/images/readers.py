"""Readers for the published file formats; each returns pixels ``(n, height, width, channels)`` and labels."""

from __future__ import annotations

import gzip
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from studies.images.unpickling import unpickle

Part = Literal["train", "test"]
Arrays = tuple[np.ndarray, np.ndarray]
_NO_PICKLE = (
    *(EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, ImportError),
    pickle.UnpicklingError,
)


def read_cifar_pickles(paths: Sequence[Path], part: Part) -> Arrays:
    """The "python version" of CIFAR-10 and CIFAR-100 (fine labels)."""
    batches = [_cifar_pickle(path) for path in paths]
    return _from_planes(np.concatenate([x for x, _ in batches])), np.concatenate([y for _, y in batches])


def read_cifar10_binary(paths: Sequence[Path], part: Part) -> Arrays:
    """The "binary version" of CIFAR-10: records of one label and 3,072 pixels."""
    return _cifar_records(paths, labels=1)


def read_cifar100_binary(paths: Sequence[Path], part: Part) -> Arrays:
    """The "binary version" of CIFAR-100: records of a coarse label, a fine label (the one used) and 3,072 pixels."""
    return _cifar_records(paths, labels=2)


def read_idx(paths: Sequence[Path], part: Part) -> Arrays:
    """MNIST's format: one file of images and one of labels, compressed or not."""
    images, labels = (_idx(path) for path in paths)
    if (images.ndim, labels.ndim) != (3, 1):
        raise ValueError(
            f"{paths[0].name} must have three axes and {paths[1].name} one; got {images.ndim} and {labels.ndim}"
        )
    return images[..., None], labels


def read_npz(paths: Sequence[Path], part: Part) -> Arrays:
    """One file with ``x_train``, ``y_train``, ``x_test`` and ``y_test``; grey images may lack the last axis."""
    with np.load(paths[0], allow_pickle=False) as file:
        names = (f"x_{part}", f"y_{part}")
        if not set(names) <= set(file.files):
            raise ValueError(f"it must hold the arrays {' and '.join(names)}; got {', '.join(file.files) or 'none'}")
        x, y = (file[name] for name in names)
    return (x[..., None] if x.ndim == 3 else x), y.reshape(-1)


def read_tiny_imagenet(paths: Sequence[Path], part: Part) -> Arrays:
    """Folders of JPEG files; the labelled ``val`` folder serves as the test part. Needs Pillow."""
    from studies.images.folders import files_by_class, read_labelled_files, test_files

    classes = {name: k for k, name in enumerate(paths[0].read_text(encoding="utf-8").split())}
    listed = files_by_class(paths[1], classes) if part == "train" else test_files(paths[1], classes)
    return read_labelled_files(listed)


def _cifar_pickle(path: Path) -> Arrays:
    try:
        content = unpickle(path)
    except _NO_PICKLE as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} must hold a dict; got a {type(content).__name__}")
    batch = {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
    pixels, labels = np.asarray(batch.get("data")), np.asarray(batch.get("labels", batch.get("fine_labels")))
    if pixels.ndim != 2 or pixels.shape[1] != 3072 or labels.shape != pixels.shape[:1]:
        raise ValueError(
            f"{path.name} must hold data of shape (n, 3072) and n labels; got shapes {pixels.shape} and {labels.shape}"
        )
    return pixels, labels


def _cifar_records(paths: Sequence[Path], labels: int) -> Arrays:
    size, parts = labels + 3072, []
    for path in paths:
        content = np.fromfile(path, dtype=np.uint8)
        if len(content) % size or not len(content):
            raise ValueError(f"{path.name} must hold records of {size:,} bytes; got {len(content):,} bytes")
        parts.append(content.reshape(-1, size))
    raw = np.concatenate(parts)
    return _from_planes(raw[:, labels:]), raw[:, labels - 1]


def _from_planes(rows: np.ndarray) -> np.ndarray:
    """CIFAR's rows hold the red plane, then the green, then the blue."""
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _idx(path: Path) -> np.ndarray:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read()
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError(f"the first bytes of {path.name} must be those of an idx file of bytes")
    begin = 4 + 4 * content[3]
    shape = [int(size) for size in np.frombuffer(content[4:begin], dtype=">u4")]
    if len(content) - begin != math.prod(shape):
        raise ValueError(
            f"{path.name} must hold {math.prod(shape):,} values by its first bytes; got {len(content) - begin:,}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=begin).reshape(shape)
