"""Tests of the guarantees by simulation: a bound is broken no more often than stated.

Each world is a distribution of confidence with the probability of an error at each value, on so many atoms
that it is continuous for the sample, or on few, so that ties abound. The true risk of every window is exact.
"""

import numpy as np
import pytest
from scipy.stats import beta, binom

from calibrant.selective import threshold_for_coverage, threshold_for_risk, uniform_risk_bound
from calibrant.selective.band import _counts, _limits, crossing_probability, local_level, mass_upper_bounds

LEVEL = 0.9
TARGET = 0.1


class World:
    def __init__(self, error, atoms):
        self.values = (np.arange(atoms) + 1) / atoms
        self.error = np.clip(error(self.values), 0, 1)

    def sample(self, generator, n):
        index = generator.integers(0, len(self.values), n)
        return self.values[index], generator.random(n) >= self.error[index]

    def risk(self, low, high):
        """True risk of accepting c ≤ low or c ≥ high; the confidences are uniform on the atoms."""
        below = np.searchsorted(self.values, low, side="right")
        above = len(self.values) - np.searchsorted(self.values, high)
        total = np.append(0, np.cumsum(self.error))
        errors = total[below] + total[-1] - total[len(self.values) - above]
        return errors / np.maximum(below + above, 1)


MONOTONE = {
    "everywhere just too bad": lambda c: np.full_like(c, TARGET + 1e-9),
    "calibrated": lambda c: 1 - c,
    "a step": lambda c: np.where(c > 0.7, 0.05, 0.3),
    "plateau at the target, then bad": lambda c: np.where(c > 0.4, TARGET, 0.9),
}
OTHERS = {
    "overconfident at the top": lambda c: np.where(c > 0.9, 0.25, 0.06),
    "waves": lambda c: 0.1 + 0.1 * np.sin(40 * c),
    "good at both ends": lambda c: np.where(np.abs(c - 0.5) < 0.2, 0.5, 0.05),
}
ATOMS = [100_000, 12]


def at_most(failures, trials, probability):
    """Whether so few failures are compatible with a failure probability of at most `probability` (1e-4)."""
    return failures <= binom.ppf(1 - 1e-4, trials, probability)


@pytest.mark.parametrize("atoms", ATOMS)
@pytest.mark.parametrize("name", MONOTONE)
def test_fixed_sequence_keeps_the_risk_where_it_is_monotone(name, atoms):
    world, generator = World(MONOTONE[name], atoms), np.random.default_rng(0)
    trials, failures = 400, 0
    for _ in range(trials):
        rule = threshold_for_risk(*world.sample(generator, 150), TARGET, level=LEVEL, method="fixed-sequence")
        failures += rule.found and world.risk(-np.inf, rule.window.high) > TARGET
    assert at_most(failures, trials, 1 - LEVEL)


@pytest.mark.parametrize("atoms", ATOMS)
@pytest.mark.parametrize("name", MONOTONE | OTHERS)
@pytest.mark.parametrize("method", ["ranks", "uniform"])
def test_no_assumption_is_needed_for_the_other_methods(method, name, atoms):
    world, generator = World((MONOTONE | OTHERS)[name], atoms), np.random.default_rng(1)
    trials, failures = 200, 0
    for _ in range(trials):
        rule = threshold_for_risk(*world.sample(generator, 150), TARGET, level=LEVEL, method=method)
        failures += rule.found and world.risk(-np.inf, rule.window.high) > TARGET
    assert at_most(failures, trials, 1 - LEVEL)


def windows(confidence, generator):
    """Many windows to look at: limits on, just beside and between the sample's confidences, and the ends."""
    values = np.unique(confidence)
    limits = np.unique(np.r_[values, values + 1e-9, values - 1e-9, generator.uniform(0, 1, 10), -np.inf])
    if len(limits) > 120:
        limits = np.r_[-np.inf, np.sort(generator.choice(limits[1:], 119, replace=False))]
    low, high = (side.ravel() for side in np.meshgrid(limits, limits, indexing="ij"))
    return low[low < high], high[low < high]


@pytest.mark.parametrize("atoms", ATOMS)
@pytest.mark.parametrize("name", MONOTONE | OTHERS)
def test_uniform_bound_holds_for_whoever_picks_any_window_after_looking(name, atoms):
    world, generator = World((MONOTONE | OTHERS)[name], atoms), np.random.default_rng(2)
    trials, failures = 150, 0
    for _ in range(trials):
        confidence, correct = world.sample(generator, 120)
        low, high = windows(confidence, generator)
        bound = uniform_risk_bound(confidence, correct, level=LEVEL).risk(low, high)
        failures += bool((world.risk(low, high) > bound + 1e-12).any())
    assert at_most(failures, trials, 1 - LEVEL)


@pytest.mark.parametrize("two_sided", [True, False])
def test_the_best_window_is_safe_and_fools_pointwise_bounds(two_sided):
    # Errors do not depend on the confidence, so every window that looks better than the rest is luck.
    world, generator = World(MONOTONE["everywhere just too bad"], 100_000), np.random.default_rng(3)
    trials, fooled, failures = 300, 0, 0
    for _ in range(trials):
        confidence, correct = world.sample(generator, 200)
        low, high = windows(confidence, generator)
        if not two_sided:
            low, high = low[low == -np.inf], high[low == -np.inf]
        kept = (confidence <= low[:, None]) | (confidence >= high[:, None])
        accepted, errors = kept.sum(1), (kept & ~correct).sum(1)
        pointwise = beta.ppf(LEVEL, errors + 1, np.maximum(accepted - errors, 1e-9))
        best = np.argmin(pointwise)
        fooled += world.risk(low[best], high[best]) > pointwise[best]
        bound = uniform_risk_bound(confidence, correct, level=LEVEL, two_sided=two_sided)
        rule = bound.best_window(TARGET)
        broken = rule.found and world.risk(rule.window.low, rule.window.high) > TARGET
        failures += broken or world.risk(low[best], high[best]) > bound.risk(low[best], high[best])
    assert at_most(failures, trials, 1 - LEVEL)
    assert fooled > 2 * (1 - LEVEL) * trials


@pytest.mark.parametrize("atoms", ATOMS)
def test_coverage_of_new_data_is_reached(atoms):
    world, generator = World(MONOTONE["calibrated"], atoms), np.random.default_rng(4)
    trials, failures = 1000, 0
    for _ in range(trials):
        rule = threshold_for_coverage(*world.sample(generator, 60), 0.8, level=LEVEL)
        failures += (world.values >= rule.window.high).mean() < 0.8
    assert at_most(failures, trials, 1 - LEVEL)


def test_crossing_probability_by_hand():
    # n = 1: U > x. n = 2: the smaller above x or the larger above y, 1 − (y² − (y − x)²).
    assert crossing_probability(1, np.array([0]), np.array([0.3])) == pytest.approx(0.7)
    x, y = 0.4, 0.9
    expected = 1 - (y**2 - (y - x) ** 2)
    assert crossing_probability(2, np.array([0, 1]), np.array([x, y])) == pytest.approx(expected)


@pytest.mark.parametrize("n", [7, 300])
def test_the_band_has_the_level_that_it_states(n):
    generator = np.random.default_rng(5)
    uniforms = np.sort(generator.random((20_000, n)), axis=1)
    crossed = (uniforms > mass_upper_bounds(n, 0.1)[:n]).any(axis=1).mean()
    # Not above 0.1, and not much below: the level is exact up to the search for it and the steps at n = 300.
    assert 0.09 < crossed < 0.1 + 4 * np.sqrt(0.09 / 20_000)


@pytest.mark.parametrize("n", [1, 2, 10, 1000, 30_000])
def test_the_band_is_monotone_and_within_a_union_bound(n):
    bounds = mass_upper_bounds(n, 0.05)
    assert len(bounds) == n + 1
    assert bounds[-1] == 1
    assert (np.diff(bounds) >= 0).all()
    assert local_level(n, 0.05) >= 0.05 / n * (1 - 1e-9)
    counts = _counts(n)
    assert crossing_probability(n, counts, _limits(n, counts, local_level(n, 0.05))) <= 0.05 + 1e-12
