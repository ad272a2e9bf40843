"""A small convolutional network, for quick runs on a CPU."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from calibrant.models.seeding import seeded_start


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
