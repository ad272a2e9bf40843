"""Estimates of training time, from the size of the table and a short speed test of the machine.

The constants are seconds on one core of a current processor, for the classifiers' default settings. They are rough:
boosted trees stop early, and other programs may be running. The reported range allows for a factor of two in both
directions. The progress bar replaces the estimate by measured time as soon as training has begun.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from calibrant.methods import SelfCalibrated

START = 1.0
"""Seconds before a network's first step, in which its training step is traced."""
STEP, STEP_PER_INPUT = 0.03, 0.0008
"""Seconds for one outer step of the ten networks: ten inner steps of 256 rows."""
TREES, TREES_PER_CELL = 0.3, 5e-6
"""Seconds for the boosted trees of one class in all folds; a cell is one input of one row."""
BO4SC_STEP, BO4SC_STEP_PER_ROW = 0.01, 5e-6
REPEATS = 8
REFERENCE = 0.018
"""Seconds of :func:`speed_probe` on the machine where the constants were measured."""


@dataclass(frozen=True)
class TimeEstimate:
    """Expected seconds of the networks and of later stages, and the number of training runs of networks."""

    networks: float
    others: float
    runs: int = 1
    doubt: float = 2.0
    """The range reaches from the estimate divided by this factor to the estimate times this factor."""
    start: float = 0.0
    """Seconds of each run before its first step."""

    @property
    def seconds(self) -> float:
        """Expected seconds in total."""
        return self.networks + self.others

    @property
    def range(self) -> tuple[float, float]:
        """The shortest and the longest expected time, as reported before training."""
        return self.seconds / self.doubt, self.seconds * self.doubt


def estimate(
    method: str, rows: int, inputs: int, n_classes: int, *, val: bool = False, slower: float = 1.0
) -> TimeEstimate:
    """Estimate the time of a fit.

    Parameters
    ----------
    method : id of the method, as in :data:`calibrant.tables.methods.METHODS`
    rows, inputs, n_classes : size of the training part; inputs are those of the networks (one per category)
    val : whether a validation part is given; a second candidate that models wrong labels may then be trained
    slower : how many times slower this machine is than the reference (:func:`slowness`)
    """
    if method == "bo4sc":
        per_epoch = 1 if rows <= 4096 else -(-rows // 512)
        outer = max(1200, 20 * per_epoch) / 5
        step = BO4SC_STEP + BO4SC_STEP_PER_ROW * min(rows, 4096)
        return TimeEstimate(slower * (START + outer * step), slower * 0.5, start=slower * START)
    full = SelfCalibrated().rows_of_step(round(0.8 * rows)) is None
    outer = 40 if full else max(800, 40 * -(-round(0.8 * rows) // 256)) / 10
    step = STEP + STEP_PER_INPUT * inputs
    runs = 2 if rows >= 2 * inputs else 1
    networks = runs * (START + outer * step)
    trees = 0.0
    if method == "self-calibrated" and n_classes <= 100:
        trees = (1 if n_classes == 2 else n_classes) * (TREES + TREES_PER_CELL * rows * inputs)
    return TimeEstimate(slower * networks, slower * (trees + 0.5), runs, 4.0 if val else 2.0, slower * START)


def slowness() -> float:
    """Measure in a fraction of a second how many times slower this machine currently is than the reference.

    Other programs count: the time includes waiting for a processor.
    """
    return max(0.1, speed_probe() / REFERENCE)


def speed_probe() -> float:
    """Return the seconds of a short piece of training, the mean of a few repeats after the first one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 256, 64, generator=generator)
    w = torch.randn(10, 64, 64, generator=generator).requires_grad_()

    def step() -> None:
        (torch.nn.functional.silu(x @ w) @ w).square().mean().backward()

    step()
    begin = time.perf_counter()
    for _ in range(10 * REPEATS):
        step()
    return (time.perf_counter() - begin) / REPEATS
