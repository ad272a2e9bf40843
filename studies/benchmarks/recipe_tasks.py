"""The tasks of :mod:`studies.benchmarks.recipes`: data and network for each seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.models import resnet18, wide_resnet
from studies import networks as plain
from studies.benchmarks.real_tasks import REAL, Rows, pretrain
from studies.images import load_parts
from studies.network_tasks import TASKS, Pair, Splits, TaskKind, classes_of

CHOOSING = 100
"""Recipes are chosen with seeds from here on, for which the test part is not read."""


@dataclass(frozen=True)
class Case:
    """A task: its data and its network, for a seed."""

    kind: TaskKind
    splits: Splits
    model: nn.Module


def network_task(name: str, seed: int) -> Case:
    """The version with 8,000 samples of a task of `python -m studies.networks`."""
    kind = TASKS[name]
    splits = kind.draw(seed, "large")
    return Case(kind, splits, kind.build(classes_of(splits), seed))


def tuned_digits(seed: int) -> Case:
    """All ten digits, for the network of the first five, which keeps its body and gets a new head."""
    case, source = network_task("digits", seed), TASKS["digits"].draw(seed, "source")
    model = TASKS["digits"].build(5, seed)
    plain.train_steps(model, case.kind.loader(source.train, shuffle=True), 400)
    torch.manual_seed(seed)
    model.head = nn.Linear(64, 10)
    return Case(case.kind, case.splits, model)


def embeddings(seed: int) -> Case:
    """Draw vectors of 128 numbers, as from a sentence encoder: ten overlapping classes, and a head of two layers."""
    generator = torch.Generator().manual_seed(1000 * seed + 5)
    centres = torch.randn(10, 128, generator=generator) * 0.18
    mixing = torch.randn(128, 128, generator=generator) / 128**0.5

    def draw(count: int) -> Pair:
        labels = torch.randint(0, 10, (count,), generator=generator)
        signal = centres[labels] * torch.randn(count, 1, generator=generator).abs().add(0.5)
        return Pair((signal + torch.randn(count, 128, generator=generator) * 0.6) @ mixing, labels)

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 10))
    return Case(_kind(TaskKind, "vectors of a sentence encoder with a head"), Splits(*map(draw, SIZES)), model)


SIZES = 8000, 2000, 5000
"""Vectors for training, validation and test."""


def _kind(form: type[TaskKind], story: str) -> Any:
    """A kind of task of which only the loader is used."""
    return form("", story, TASKS["table"].draw, TASKS["table"].build, "")


class RowsKind(TaskKind):
    """A task whose batches are read by :class:`Rows`."""

    def loader(self, pair: Pair, *, shuffle: bool) -> Any:
        """Return batches of rows."""
        return Rows(pair, shuffle)


@dataclass(frozen=True)
class Crops:
    """Batches of images on their device; with ``shuffle``, shifted by up to four pixels and flipped at random.

    All random numbers of an epoch are drawn when it begins, so that no step waits for a copy to the device.
    """

    pair: Pair
    shuffle: bool
    size: int = 128

    def __len__(self) -> int:
        return -(-len(self.pair.labels) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.pair
        if not self.shuffle:
            yield from zip(images.split(self.size), labels.split(self.size), strict=True)
            return
        count, side = len(labels), images.shape[-1]
        columns = torch.randint(0, 9, (count, 1)) + torch.arange(side)
        columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns).to(images.device)
        rows = (torch.randint(0, 9, (count, 1)) + torch.arange(side)).to(images.device)
        for index in torch.randperm(count).to(images.device).split(self.size):
            padded = F.pad(images[index], (4,) * 4).permute(0, 2, 3, 1)
            place = torch.arange(len(index), device=images.device)[:, None, None]
            crops = padded[place, rows[index][:, :, None], columns[index][:, None, :]]
            yield crops.permute(0, 3, 1, 2).contiguous(), labels[index]


class ImageKind(TaskKind):
    """A task whose batches are read by :class:`Crops`."""

    def loader(self, pair: Pair, *, shuffle: bool) -> Any:
        """Return batches of images."""
        return Crops(pair, shuffle)


class Vision(nn.Module):
    """A small vision transformer: patches of 4 × 4 pixels, 6 layers of width 192."""

    def __init__(self, n_classes: int, seed: int, side: int = 32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.patches = nn.Conv2d(3, 192, 4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // 4) ** 2, 192))
        layer = nn.TransformerEncoderLayer(192, 3, 384, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        hidden = self.body(self.patches(x).flatten(2).transpose(1, 2) + self.places)
        return self.head(self.norm(hidden).mean(1))


@dataclass(frozen=True)
class ImageTask:
    """An image task: its data set, its network, and the epochs of all training runs."""

    dataset: str
    build: Callable[[int, int], nn.Module]
    """``(classes, seed)``."""
    epochs: int
    tuned: bool = False
    """Train on the first half of the classes before, and compare on the other half."""


IMAGES = {
    "images-resnet": ImageTask("cifar10", lambda classes, seed: resnet18(classes, seed=seed), 15),
    "images-wide": ImageTask("cifar100", lambda classes, seed: wide_resnet(classes, depth=16, width=4, seed=seed), 12),
    "images-transformer": ImageTask("cifar100", Vision, 12),
    "images-tuned": ImageTask("cifar100", lambda classes, seed: resnet18(classes, seed=seed), 8, tuned=True),
}
FOLDER: list[Path] = []
"""The folder with the published images, from ``--data``."""


def images(name: str, seed: int, device: str = "cpu", subset: int | None = None) -> Case:
    """A tenth of the published training images, chosen by the seed, for validation, and the published test images.

    ``subset`` is the number of training images for a quick look; None: all others.
    """
    if not FOLDER:
        raise ValueError(f"The task {name} needs the published images. Give their folder: --data FOLDER.")
    task = IMAGES[name]
    train, test, n_classes = published(task.dataset, FOLDER[0], device)
    if task.tuned:
        n_classes //= 2
        source, train, test = halved(train, False), halved(train, True), halved(test, True)
        model = tuned_network(task, n_classes, seed, source)
    else:
        model = task.build(n_classes, seed)
    order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(1000 * seed + 7)).to(device)
    val, rest = order[: len(order) // 10], order[len(order) // 10 :][:subset]
    parts = [Pair(train.inputs[rows], train.labels[rows]) for rows in (rest, val)]
    return Case(_kind(ImageKind, "images with crops and flips"), Splits(*parts, test), model)


def halved(pair: Pair, second: bool) -> Pair:
    """The samples of the first or second half of the classes, counted from 0."""
    half = (int(pair.labels.max()) + 1) // 2
    rows = (pair.labels >= half) == second
    return Pair(pair.inputs[rows], pair.labels[rows] - half * second)


def tuned_network(task: ImageTask, n_classes: int, seed: int, source: Pair) -> nn.Module:
    """A network trained on other classes, on the CPU, with a new head."""
    model = task.build(n_classes, seed).to(source.labels.device)
    torch.manual_seed(seed)
    pretrain(model, Crops(source, True), PRETRAINED)
    model.fc = nn.Linear(model.fc.in_features, n_classes)
    return model.cpu()


PRETRAINED = 10
"""Epochs on other classes before fine-tuning."""


def real(name: str, seed: int, device: str) -> Case:
    """A task of :mod:`studies.benchmarks.real_tasks`."""
    if not FOLDER:
        raise ValueError(f"The task {name} needs the published data. Give their folder: --data FOLDER.")
    splits = REAL[name].draw(FOLDER[0], seed)
    splits = Splits(*(Pair(pair.inputs.to(device), pair.labels.to(device)) for pair in splits))
    model = REAL[name].build(int(splits.train.labels.max()) + 1, seed)
    return Case(_kind(RowsKind, "rows in memory"), splits, model)


@cache
def published(dataset: str, folder: Path, device: str) -> tuple[Pair, Pair, int]:
    """Training and test images, normalised and on the device, and the number of classes."""
    parts = load_parts(dataset, folder)
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (parts[0].mean, parts[0].std))
    pairs = [Pair((p.inputs.to(device).float() / 255 - mean) / std, p.labels.to(device)) for p in parts]
    return pairs[0], pairs[1], parts[0].n_classes


CASES: dict[str, Callable[[int], Case]] = {
    **{name: lambda seed, name=name: network_task(name, seed) for name in TASKS},
    "embeddings": embeddings,
    "digits-tuned": tuned_digits,
}
WITH_DATA = IMAGES | REAL
"""Tasks that need ``--data``."""
TASK_NAMES = (*CASES, *WITH_DATA)


def case_of(task: str, seed: int, device: str = "cpu", subset: int | None = None) -> Case:
    """A task by name. ``subset`` is for image tasks."""
    if task in IMAGES:
        return images(task, seed, device, subset)
    return real(task, seed, device) if task in REAL else CASES[task](seed)
