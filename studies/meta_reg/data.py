"""Make a training task and a test part from the name of an image data set, its folder and a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from calibrant.data import split_indices
from calibrant.data.vision import CropAndFlip, Images, Normalise, split
from calibrant.methods import Samples, Task
from calibrant.models import resnet18, resnet50, small_cnn, wide_resnet
from studies.images import load_noisy_labels, load_parts

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "wide-resnet": wide_resnet,
    "small-cnn": small_cnn,
}
"""Networks by name; each takes ``classes``, ``channels`` and ``seed``."""


@dataclass(frozen=True)
class Dataset:
    """A data set of the study: its title, its default network, and its augmentation."""

    title: str
    model: str
    augment: CropAndFlip | None
    files: bool = True
    """Whether it is read from a folder (all except scikit-learn's digits)."""
    noisy: str | None = None
    """The name of the noisy labels that replace the published ones in the training part."""


def _cifar10n(noisy: str) -> Dataset:
    return Dataset(f"CIFAR-10N ({noisy} labels)", "resnet18", CropAndFlip(), noisy=noisy)


DATASETS = {
    "cifar10": Dataset("CIFAR-10", "resnet18", CropAndFlip()),
    "cifar100": Dataset("CIFAR-100", "resnet18", CropAndFlip()),
    "tiny-imagenet": Dataset("Tiny-ImageNet", "resnet18", CropAndFlip(8)),
    "fashion-mnist": Dataset("Fashion-MNIST", "small-cnn", CropAndFlip(2)),
    "digits": Dataset("scikit-learn's digits", "small-cnn", CropAndFlip(1, flip=False), files=False),
    "cifar10n-worse": _cifar10n("worse"),
    "cifar10n-aggregate": _cifar10n("aggregate"),
    "cifar10n-random": _cifar10n("random1"),
}
"""The data sets of the study. A mirrored digit is not a digit, so digits are cropped but not flipped. CIFAR-10N is
CIFAR-10 with noisy human labels in the training part; the other parts have the published labels."""
PER_TEST = 5
"""Training images per test image in a limited data set, as in the CIFARs."""
TEST_SHARE = 0.3
"""The share of test images in scikit-learn's digits; the same images for every seed."""


@dataclass(frozen=True)
class NetworkFactory:
    """A factory of networks, ``network(seed)``: a name of :data:`MODELS` with the shape of its task."""

    name: str
    n_classes: int
    channels: int

    def __call__(self, seed: int) -> nn.Module:
        return MODELS[self.name](self.n_classes, channels=self.channels, seed=seed)


@dataclass(frozen=True)
class PreparedImages:
    """One data set at one seed: the training task, and the test part, which no method uses."""

    task: Task
    test: Samples
    wrong: Tensor | None = None
    """Mask of the training samples with a wrong label, on the CPU; None if all labels are the published ones."""

    def to(self, device: torch.device | str) -> PreparedImages:
        """A copy on another device."""
        return replace(self, task=self.task.to(device), test=self.test.to(device))


def prepare(
    name: str,
    folder: str | Path | None,
    seed: int,
    *,
    model: str | None = None,
    limit: int | None = None,
    labels: str | Path | None = None,
) -> PreparedImages:
    """Split a data set by seed into 80 % training, 10 % validation and 10 % meta-validation parts.

    Parameters
    ----------
    name : a name of :data:`DATASETS`
    folder : where its files are; None for digits
    seed : the seed of the split and of the network
    model : a name of :data:`MODELS`; default: that of the data set
    limit : the number of images of the published training set, in proportion to the classes, with a fifth as many test
        images, which are the same for all seeds; None: all images
    labels : the file with the labels of CIFAR-10N

    All methods train on the same 80 %, also those without outer variables. The validation part is used for temperatures
    and for choosing a state of the network; the meta-validation part moves outer variables.
    """
    train, test = published_parts(name, _text(folder), _text(labels))
    if limit is not None:
        train, test = train.sample(limit, seed=seed), test.sample(max(limit // PER_TEST, test.n_classes), seed=0)
    parts = split(train, seed)
    if min(map(len, parts)) < train.n_classes:
        raise ValueError(
            f"--limit must leave at least one image of each class in every part, {10 * train.n_classes:,} or more for "
            f"{DATASETS[name].title}; got {len(train):,} images."
        )
    normalise = Normalise(train.mean, train.std)

    def part(images: Images, augment: Any = None) -> Samples:
        return Samples(images.inputs, images.labels, augment=augment, prepare=normalise)

    train_part, wrong = part(parts.train, DATASETS[name].augment), None
    if parts.train.noisy is not None:
        train_part, wrong = replace(train_part, labels=parts.train.noisy), parts.train.noisy != parts.train.labels
    network = NetworkFactory(model or DATASETS[name].model, train.n_classes, train.inputs.shape[1])
    task = Task(train_part, part(parts.val), train.n_classes, seed, network, meta=part(parts.meta_val))
    return PreparedImages(task, part(test), wrong)


@cache
def published_parts(name: str, folder: str | None, labels: str | None = None) -> tuple[Images, Images]:
    """Read the published training and test parts; results are cached.

    ``labels`` is the file with the labels of CIFAR-10N, which become ``noisy`` of the training part.
    """
    dataset = DATASETS[name]
    if not dataset.files:
        return _digits()
    assert folder is not None, "a Setup with such data names their folder"
    if dataset.noisy is None:
        return load_parts(name, folder)
    assert labels is not None
    train, test = load_parts("cifar10", folder)
    return replace(train, noisy=load_noisy_labels(labels, dataset.noisy, train)), test


def digest(name: str, folder: str | Path | None, labels: str | Path | None = None) -> str:
    """A digest of all pixels and labels, for the keys of runs."""
    hashed = hashlib.sha256()
    for images in published_parts(name, _text(folder), _text(labels)):
        for values in (images.inputs, images.labels, images.noisy):
            if values is not None:
                hashed.update(values.numpy().data)
    return hashed.hexdigest()[:12]


def _text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def _digits() -> tuple[Images, Images]:
    """scikit-learn's 1,797 digits, 8×8 pixels, 0 to 16 scaled to 0 to 255."""
    data = load_digits()
    pixels: Tensor = torch.from_numpy(np.rint(data.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(data.target.astype(np.int64))
    rows = split_indices(len(labels), (1 - TEST_SHARE, TEST_SHARE), seed=0, stratify=data.target)
    train, test = (torch.as_tensor(part) for part in rows)
    scaled = pixels[train].double() / 255
    mean, std = (float(scaled.mean()),), (float(scaled.std(correction=0)),)
    names = tuple(map(str, range(10)))
    return (
        Images(pixels[train], labels[train], names, mean, std),
        Images(pixels[test], labels[test], names, mean, std),
    )
