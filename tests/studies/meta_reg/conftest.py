"""A few hundred simulated images in the layout of CIFAR-10, and one finished study on them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from studies.meta_reg.study import reproduce

CLASSES = 10


def write_cifar10(folder: Path, train: int = 200, test: int = 60) -> Path:
    """``cifar10.npz`` with x_train, y_train, x_test, y_test: each class has its own colour, with noise."""
    rng = np.random.default_rng(0)
    colours = rng.uniform(60, 190, (CLASSES, 1, 1, 3))
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        labels = np.arange(count) % CLASSES
        pixels = colours[labels] + rng.normal(0, 60, (count, 32, 32, 3))
        arrays |= {f"x_{part}": pixels.clip(0, 255).astype(np.uint8), f"y_{part}": labels.astype(np.uint8)}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "cifar10.npz", **arrays)
    return folder


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the simulated images."""
    return write_cifar10(tmp_path_factory.mktemp("images"))


SMALL = {
    "dataset": "cifar10",
    "model": "small-cnn",
    "methods": ["ce", "ce-ts", "flg-sece", "recommended"],
    "seeds": 2,
    "epochs": 2,
    "device": "cpu",
}


@pytest.fixture(scope="session")
def finished(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study of four methods on them."""
    out = tmp_path_factory.mktemp("study")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*images, but .*CIFAR-10 has")
        reproduce(**SMALL, data=images, out=out)
    return out
