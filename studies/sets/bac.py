"""Simulated blood-alcohol data: what people drank, and whether their blood level is above the limit.

The fifth set of the first paper (Sanguin et al. 2024, Section 4). The level follows the estimate of Widmark in the form
of the public simulated set (2,000 rows)::

    level = max(0, 0.806 · units · 1.2 / (water · kg) − rate · (minutes − 30 · meal) / 60)

with body water 0.58 for men and 0.49 for women, and rate 0.015 and 0.017 (g/100 ml) per hour. In that set a meal
*raises* the level, by the alcohol that is burnt in half an hour. This is odd, but it is the convention of the set and
is kept. The numbers are arguments (:class:`BACConstants`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr
from scipy.stats import truncnorm

from studies.sets.synthetic import Seed, Synthetic

FEATURES = ("sex", "weight", "units", "minutes", "meal")


@dataclass(frozen=True)
class BACConstants:
    """The constants of the level; pairs are (women, men), the order of the column ``sex`` (0 = woman, 1 = man)."""

    blood_water: float = 0.806
    conversion: float = 1.2  # from drinks of 10 g to Swedish standards
    body_water: tuple[float, float] = (0.49, 0.58)
    rate: tuple[float, float] = (0.017, 0.015)  # per hour
    meal_minutes: float = 30.0


@dataclass(frozen=True, kw_only=True)
class BAC(Synthetic):
    """Blood-alcohol samples: ``level`` is the result of the formula, ``measured`` adds the measurement noise."""

    level: np.ndarray
    measured: np.ndarray


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


def bac(
    samples: int,
    *,
    seed: Seed,
    threshold: float = 0.08,
    noise: float = 0.0,
    constants: BACConstants = BACConstants(),  # noqa: B008 (frozen)
) -> BAC:
    """Draw people who drank; class 1 if the measured level is above ``threshold`` (about two thirds of them).

    ``noise`` is the standard deviation of a Gaussian error added to the level before it is compared with the threshold.
    Then ``P(1 | x) = Φ((level(x) − threshold) / noise)``; without noise it is 0 or 1, and the labels are a function of
    the features.

    The columns are ``sex`` (0 woman, 1 man), ``weight`` in kg, ``units`` (whole), ``minutes`` of drinking and ``meal``
    (0 or 1). Sex and meal are balanced; the others are normal with the means and deviations of the public set,
    truncated to its ranges.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1; got {samples}.")
    if not noise >= 0:
        raise ValueError(f"noise, a standard deviation, must not be negative; got {noise}.")
    generator = np.random.default_rng(seed)
    sex, meal = generator.integers(0, 2, (2, samples))
    uniform = generator.random((3, samples))
    weight = np.where(sex == 1, _WEIGHT[1].draw(uniform[0]), _WEIGHT[0].draw(uniform[0]))
    units = np.where(sex == 1, _UNITS[1].draw(uniform[1]), _UNITS[0].draw(uniform[1]))
    inputs = np.stack([sex, weight, np.rint(units), _MINUTES.draw(uniform[2]), meal], 1).astype(float)
    level = bac_level(inputs, constants)
    measured = level + noise * generator.normal(size=samples)
    return BAC(
        inputs=inputs,
        labels=(measured > threshold).astype(int),
        posterior=_posterior(threshold, noise, constants),
        feature_names=FEATURES,
        level=level,
        measured=measured,
    )


def bac_level(inputs: np.ndarray, constants: BACConstants = BACConstants()) -> np.ndarray:  # noqa: B008 (frozen)
    """The blood-alcohol level in g/100 ml of rows (sex, weight, units, minutes, meal)."""
    inputs = np.asarray(inputs, dtype=float)
    if inputs.ndim != 2 or inputs.shape[1] != len(FEATURES):
        raise ValueError(f"inputs must be rows of {', '.join(FEATURES)}; got shape {inputs.shape}.")
    sex, weight, units, minutes, meal = inputs.T
    water, rate = (np.where(sex == 1, men, women) for women, men in (constants.body_water, constants.rate))
    taken = constants.blood_water * units * constants.conversion / (water * weight)
    gone = rate * (minutes - constants.meal_minutes * meal) / 60
    return np.maximum(0.0, taken - gone)


def _posterior(threshold: float, noise: float, constants: BACConstants) -> Callable[[np.ndarray], np.ndarray]:
    def posterior(x: np.ndarray) -> np.ndarray:
        margin = bac_level(x, constants) - threshold
        # Each tail has its own formula, because 1 − Φ loses small values.
        over, under = (ndtr(margin / noise), ndtr(-margin / noise)) if noise else (margin > 0, margin <= 0)
        return np.stack([under, over], 1).astype(float)

    return posterior
