"""Generators of two-dimensional sets that an author of the first paper could have typed, with their Bayes accuracies.

The paper names the sets and their widths, but neither the centres of the blobs nor the form of the spirals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.datasets import make_blobs

SAMPLES = 2000
BLOB_SEEDS = range(1001)
TURNS = (1.0, 1.5, 1.75, 2.0, 13 / 6, 2.5, 3.0)
"""Turns of a spiral; 13/6 is the 780° of a widely copied function."""
RADII = ((2.0, 0.0), (2.0, 1.0), (2.0, math.pi), (2.5, 0.0), (3.0, 0.0), (3.0, 1.0), (3.0, math.pi), (4.0, 0.0))
"""Slope a and offset b of the radius aθ + b."""
ENDS = (10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0)
"""Outer radius of spirals that grow linearly from zero, as in `np.linspace(0, 20, n)`."""
Sample = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Blobs:
    """`make_blobs(2000, centers=5, cluster_std=width, random_state=seed)` of scikit-learn."""

    seed: int

    @property
    def name(self) -> str:
        """What the author would have typed."""
        return f"make_blobs, random_state={self.seed}"

    @property
    def form(self) -> dict[str, Any]:
        """The arguments, for the record."""
        return {"seed": self.seed}

    def draw(self, width: float, seed: int = 0) -> Sample:
        """The set; ``seed`` has no effect, because an author draws it once."""
        inputs, labels = make_blobs(SAMPLES, centers=5, cluster_std=width, random_state=self.seed)
        return inputs, labels

    def bayes_accuracy(self, width: float) -> float:
        """Accuracy of the exact posterior, the nearest centre, on these 2,000 samples."""
        inputs, labels, centres = make_blobs(
            SAMPLES, centers=5, cluster_std=width, random_state=self.seed, return_centers=True
        )
        return float((np.square(inputs[:, None] - centres).sum(2).argmin(1) == labels).mean())


@dataclass(frozen=True)
class Spirals:
    """Two spirals, of radius ±(aθ + b), with Gaussian noise on each axis or on the radius.

    The angle is 2π·turns·u or 2π·turns·√u with u uniform; the root gives equal density along the arms.
    """

    a: float
    b: float
    turns: float
    angle: Literal["root", "uniform"]
    noise: Literal["axes", "radius"]

    @property
    def name(self) -> str:
        """The form in words."""
        offset = {0.0: "", math.pi: " + π"}.get(self.b, f" + {self.b:g}")
        angle = f"2π·{self.turns:.3g}·{'√u' if self.angle == 'root' else 'u'}"
        return f"radius {self.a:.3g}θ{offset}, θ = {angle}, noise on the {self.noise}"

    @property
    def form(self) -> dict[str, Any]:
        """The arguments, for the record."""
        return dict(vars(self))

    def draw(self, width: float, seed: int = 0) -> Sample:
        """A new sample for each seed: the paper's seed is unknown and, unlike for blobs, moves no centre."""
        generator = np.random.RandomState(seed)
        labels = np.repeat((0, 1), SAMPLES // 2)
        angle = self._angle(generator.rand(SAMPLES))
        radius = self.a * angle + self.b + (width * generator.randn(SAMPLES) if self.noise == "radius" else 0.0)
        inputs = _points(radius, angle) * np.where(labels == 0, 1, -1)[:, None]
        return inputs + (width * generator.randn(SAMPLES, 2) if self.noise == "axes" else 0.0), labels

    def bayes_accuracy(self, width: float, samples: int = 2) -> float:
        """Accuracy of the exact posterior on a few samples of 2,000."""
        density = self._on_axes if self.noise == "axes" else self._on_radius
        drawn = [self.draw(width, seed) for seed in range(samples)]
        right = [(density(x, width, -1) > density(x, width, 1)) == y for x, y in drawn]
        return float(np.mean(right))

    def _angle(self, u: np.ndarray) -> np.ndarray:
        return 2 * math.pi * self.turns * (np.sqrt(u) if self.angle == "root" else u)

    def _on_axes(self, x: np.ndarray, width: float, sign: int, nodes: int = 400) -> np.ndarray:
        """Logarithm of a class's density up to a shared constant: a mean over points of its curve."""
        angle = self._angle((np.arange(nodes) + 0.5) / nodes)
        curve = sign * _points(self.a * angle + self.b, angle)
        logs: np.ndarray = np.logaddexp.reduce((x @ curve.T - np.square(curve).sum(1) / 2) / width**2, axis=1)
        return logs

    def _on_radius(self, x: np.ndarray, width: float, sign: int) -> np.ndarray:
        """A class's density up to a factor that both share: a sum over the turns, and over noise beyond the centre."""
        direction, distance = np.arctan2(x[:, 1], x[:, 0]), np.hypot(*x.T)
        longest, total = 2 * math.pi * self.turns, np.zeros(len(x))
        for half, turn in itertools.product((0, 1), range(math.ceil(self.turns) + 1)):
            reversed_arm = half + (sign < 0)
            angle = (direction + math.pi * reversed_arm) % (2 * math.pi) + 2 * math.pi * turn
            density = (angle if self.angle == "root" else 1.0) * (angle < longest)
            residual = (-1) ** half * distance - (self.a * angle + self.b)
            total += density * np.exp(-0.5 * np.square(residual / width))
        return total


Generator = Blobs | Spirals


def _points(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)


def spiral_forms() -> Iterator[Spirals]:
    """All searched forms of spirals."""
    for turns, noise in itertools.product(TURNS, ("axes", "radius")):
        for angle, (a, b) in itertools.product(("root", "uniform"), RADII):
            yield Spirals(a, b, turns, angle, noise)  # type: ignore[arg-type]
        for end in ENDS:
            yield Spirals(end / (2 * math.pi * turns), 0.0, turns, "uniform", noise)  # type: ignore[arg-type]
