"""Wide residual networks (Zagoruyko & Komodakis 2016), for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calibrant.models.seeding import seeded_start


class WideResNet(nn.Module):
    """WRN-``depth``-``width``: three stages of pre-activation blocks with 16·width, 32·width and 64·width channels."""

    def __init__(self, n_classes: int, *, depth: int, width: int, dropout: float = 0.0, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        blocks, inputs = [], 16
        for stage in range(3):
            outputs = 16 * width * 2**stage
            for position in range((depth - 4) // 6):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(_PreActivationBlock(inputs, outputs, stride, dropout))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.fc = nn.Linear(inputs, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


class _PreActivationBlock(nn.Module):
    """Normalisation, ReLU and convolution, twice. If the shape changes, the shortcut reads the input after its ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.first_norm(x))
        residual = self.second(self.dropout(torch.relu(self.second_norm(self.first(active)))))
        return residual + (x if self.shortcut is None else self.shortcut(active))


def wide_resnet(
    n_classes: int,
    *,
    depth: int = 28,
    width: int = 10,
    dropout: float = 0.0,
    channels: int = 3,
    seed: int = 0,
) -> WideResNet:
    """A wide residual network for images of 32×32 or 64×64 pixels. ``depth`` must be 6·k + 4.

    The last layer is called ``fc`` and has 64·width inputs. The initial parameters are a pure function of ``seed``,
    with PyTorch's default for each layer.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    depth, width : int
        Number of layers, and factor of the number of channels.
    dropout : float
        Dropout rate inside the blocks.
    channels : int
        Number of colour channels.
    seed : int
        Seed of the initial parameters.
    """
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth must be 6·k + 4 with k at least 1 (10, 16, 22, 28, …); got {depth}.")
    if n_classes < 1 or channels < 1 or width < 1:
        raise ValueError(f"n_classes, channels and width must be at least 1; got {n_classes=}, {channels=}, {width=}.")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}.")
    with seeded_start(seed):
        return WideResNet(n_classes, depth=depth, width=width, dropout=dropout, channels=channels)
