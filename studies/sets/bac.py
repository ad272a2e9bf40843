"""Simulated blood-alcohol data: what people drank, and whether their blood level is above the limit.

The fifth set of the first paper (Sanguin et al. 2024, Section 4). The level follows the estimate of Widmark in the form
of the public simulated set (2,000 rows)::

    level = max(0, 0.806 · units · 1.2 / (water · kg) − rate · (minutes − 30 · meal) / 60)

with body water 0.58 for men and 0.49 for women, and rate 0.015 and 0.017 (g/100 ml) per hour. In that set a meal
*raises* the level, by the alcohol that is burnt in half an hour. This is odd, but it is the convention of the set and
is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import truncnorm

from studies.sets.synthetic import Seed, Synthetic

FEATURES = ("sex", "weight", "units", "minutes", "meal")
THRESHOLD = 0.08


@dataclass(frozen=True)
class _Normal:
    """A truncated normal distribution: mean, standard deviation, smallest and largest value."""

    mean: float
    std: float
    low: float
    high: float

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        a, b = (self.low - self.mean) / self.std, (self.high - self.mean) / self.std
        return self.mean + self.std * truncnorm.ppf(uniform, a, b)


# (women, men). Units are rounded, so the ranges 1 to 6 and 1 to 12 extend by half a unit on both sides. Weights have no
# published range; four standard deviations keep them plausible for adults.
_UNITS = (_Normal(3.48, 1.01, 0.5, 6.5), _Normal(6.57, 1.93, 0.5, 12.5))
_WEIGHT = (_Normal(66.5, 8.0, 34.5, 98.5), _Normal(78.3, 10.1, 37.9, 118.7))
_MINUTES = _Normal(91.2, 20.2, 30.0, 163.0)


def bac(samples: int, *, seed: Seed) -> Synthetic:
    """Draw people who drank; class 1 if the level is above 0.08 (about two thirds of them).

    The labels are a function of the features, so the posterior is 0 or 1. The columns are ``sex`` (0 woman, 1 man),
    ``weight`` in kg, ``units`` (whole), ``minutes`` of drinking and ``meal`` (0 or 1). Sex and meal are balanced; the
    others are normal with the means and deviations of the public set, truncated to its ranges.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1; got {samples}.")
    generator = np.random.default_rng(seed)
    sex, meal = generator.integers(0, 2, (2, samples))
    uniform = generator.random((3, samples))
    weight = np.where(sex == 1, _WEIGHT[1].draw(uniform[0]), _WEIGHT[0].draw(uniform[0]))
    units = np.where(sex == 1, _UNITS[1].draw(uniform[1]), _UNITS[0].draw(uniform[1]))
    inputs = np.stack([sex, weight, np.rint(units), _MINUTES.draw(uniform[2]), meal], 1).astype(float)
    return Synthetic(inputs, (bac_level(inputs) > THRESHOLD).astype(int), _posterior, FEATURES)


def bac_level(inputs: np.ndarray) -> np.ndarray:
    """The blood-alcohol level in g/100 ml of rows (sex, weight, units, minutes, meal)."""
    inputs = np.asarray(inputs, dtype=float)
    if inputs.ndim != 2 or inputs.shape[1] != len(FEATURES):
        raise ValueError(f"inputs must be rows of {', '.join(FEATURES)}; got shape {inputs.shape}.")
    sex, weight, units, minutes, meal = inputs.T
    water, rate = np.where(sex == 1, 0.58, 0.49), np.where(sex == 1, 0.015, 0.017)
    taken = 0.806 * units * 1.2 / (water * weight)  # 1.2: from drinks of 10 g to Swedish standards
    gone = rate * (minutes - 30.0 * meal) / 60
    return np.maximum(0.0, taken - gone)


def _posterior(x: np.ndarray) -> np.ndarray:
    over = bac_level(x) > THRESHOLD
    return np.stack([~over, over], 1).astype(float)
