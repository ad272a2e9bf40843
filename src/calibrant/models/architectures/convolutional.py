"""Convolutional networks for images: a small one, residual networks, and wide residual networks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.models.functional.global_state import seeded_start


class SmallCNN(nn.Module):
    """Convolution, normalisation, ReLU and pooling for each width, then the mean over pixels and the layer ``fc``."""

    def __init__(self, n_classes: int, *, channels: int, widths: Sequence[int], batch_norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise((channels, *widths)):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=not batch_norm))
            layers += [nn.BatchNorm2d(outputs)] if batch_norm else []
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(widths[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean((2, 3)))


def small_cnn(
    n_classes: int,
    *,
    channels: int = 1,
    widths: Sequence[int] = (16, 32, 64),
    batch_norm: bool = True,
    seed: int = 0,
) -> SmallCNN:
    """A small network for images from 8×8 to 32×32 pixels.

    Each width halves the image, so ``widths`` has at most three entries for images of 8×8 pixels. The last layer is
    called ``fc`` and has ``widths[-1]`` inputs. The initial parameters are a pure function of ``seed``.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    channels : int
        Number of colour channels.
    widths : sequence of int
        Channels of each convolution.
    batch_norm : bool
        Whether BatchNorm follows each convolution.
    seed : int
        Seed of the initial parameters.
    """
    widths = tuple(widths)
    if not widths or any(width < 1 for width in widths) or n_classes < 1 or channels < 1:
        raise ValueError(
            "n_classes, channels and every width must be at least 1, and widths must not be empty; "
            f"got {n_classes=}, {channels=} and {widths=}."
        )
    with seeded_start(seed):
        return SmallCNN(n_classes, channels=channels, widths=widths, batch_norm=batch_norm)


Stem = Literal["cifar", "imagenet"]


class ResNet(nn.Module):
    """Four stages of residual blocks, average pooling, and a linear layer ``fc`` that computes the logits.

    ``stem="cifar"`` starts with one 3×3 convolution at full resolution, for images of 32×32 or 64×64 pixels.
    ``stem="imagenet"`` starts with a 7×7 convolution of stride 2 and a pooling layer of stride 2.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        n_classes: int,
        *,
        stem: Stem = "cifar",
        channels: int = 3,
    ) -> None:
        super().__init__()
        width = 64
        if stem == "cifar":
            self.stem = nn.Sequential(*_convolution(channels, width, 3), nn.ReLU())
        elif stem == "imagenet":
            pool = nn.MaxPool2d(3, stride=2, padding=1)
            self.stem = nn.Sequential(*_convolution(channels, width, 7, stride=2), nn.ReLU(), pool)
        else:
            raise ValueError(f"stem must be 'cifar' or 'imagenet'; got {stem!r}.")
        blocks: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(width, 64 * 2**stage, stride))
                width = 64 * 2**stage * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class _Block(nn.Module):
    """``relu(residual(x) + shortcut(x))``. If the shape changes, the shortcut is a 1×1 convolution."""

    expansion = 1

    def __init__(self, inputs: int, outputs: int, stride: int, residual: nn.Sequential) -> None:
        super().__init__()
        self.residual = residual
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


class BasicBlock(_Block):
    """Two 3×3 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        residual = nn.Sequential(*_convolution(inputs, width, 3, stride), nn.ReLU(), *_convolution(width, width, 3))
        super().__init__(inputs, width, stride, residual)


class Bottleneck(_Block):
    """1×1, 3×3 (with the stride) and 1×1 convolutions, the last four times as wide."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        outputs = self.expansion * width
        residual = nn.Sequential(
            *_convolution(inputs, width, 1),
            nn.ReLU(),
            *_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_convolution(width, outputs, 1),
        )
        super().__init__(inputs, outputs, stride, residual)


def resnet18(n_classes: int, *, stem: Stem = "cifar", channels: int = 3, seed: int = 0) -> ResNet:
    """ResNet-18, the network of the second paper, with 512 features before the layer ``fc``.

    The initial parameters are a pure function of ``seed``. Each layer uses PyTorch's default, as in the public code
    that the paper extends (He et al. draw from a normal distribution instead).

    Parameters
    ----------
    n_classes : int
        Number of classes.
    stem : {"cifar", "imagenet"}
        First layers, for small or for large images; see :class:`ResNet`.
    channels : int
        Number of colour channels.
    seed : int
        Seed of the initial parameters.
    """
    return _resnet(BasicBlock, (2, 2, 2, 2), n_classes, stem, channels, seed)


def resnet50(n_classes: int, *, stem: Stem = "cifar", channels: int = 3, seed: int = 0) -> ResNet:
    """ResNet-50: bottleneck blocks, and 2,048 features before the layer ``fc``. Arguments as in :func:`resnet18`."""
    return _resnet(Bottleneck, (3, 4, 6, 3), n_classes, stem, channels, seed)


def _resnet(
    block: type[BasicBlock] | type[Bottleneck],
    depths: Sequence[int],
    n_classes: int,
    stem: Stem,
    channels: int,
    seed: int,
) -> ResNet:
    if n_classes < 1 or channels < 1:
        raise ValueError(f"n_classes and channels must be at least 1; got {n_classes=} and {channels=}.")
    with seeded_start(seed):
        return ResNet(block, depths, n_classes, stem=stem, channels=channels)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """A convolution that keeps the image size at stride 1, and its normalisation."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(outputs)


class WideResNet(nn.Module):
    """WRN-``depth``-``width``: three stages of pre-activation blocks with 16·width, 32·width and 64·width channels."""

    def __init__(self, n_classes: int, *, depth: int, width: int, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        blocks, inputs = [], 16
        for stage in range(3):
            outputs = 16 * width * 2**stage
            for position in range((depth - 4) // 6):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(_PreActivationBlock(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.fc = nn.Linear(inputs, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


class _PreActivationBlock(nn.Module):
    """Normalisation, ReLU and convolution, twice. If the shape changes, the shortcut reads the input after its ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.first_norm(x))
        residual = self.second(torch.relu(self.second_norm(self.first(active))))
        return residual + (x if self.shortcut is None else self.shortcut(active))


def wide_resnet(n_classes: int, *, depth: int = 28, width: int = 10, channels: int = 3, seed: int = 0) -> WideResNet:
    """A wide residual network for images of 32×32 or 64×64 pixels. ``depth`` must be 6·k + 4.

    The last layer is called ``fc`` and has 64·width inputs. The initial parameters are a pure function of ``seed``,
    with PyTorch's default for each layer.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    depth, width : int
        Number of layers, and factor of the number of channels.
    channels : int
        Number of colour channels.
    seed : int
        Seed of the initial parameters.
    """
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth must be 6·k + 4 with k at least 1 (10, 16, 22, 28, …); got {depth}.")
    if n_classes < 1 or channels < 1 or width < 1:
        raise ValueError(f"n_classes, channels and width must be at least 1; got {n_classes=}, {channels=}, {width=}.")
    with seeded_start(seed):
        return WideResNet(n_classes, depth=depth, width=width, channels=channels)
