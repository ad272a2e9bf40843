"""Statistics over seeds: the mean, the paired difference of two methods, and the ratio of two means, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.metrics.intervals import Estimate


def mean_interval(values: Iterable[float | None], *, level: float = 0.95, overlap: float = 0.0) -> Estimate:
    """Mean of one value per seed, with Student's t interval.

    x̄ ± t_{n−1, (1+level)/2} · s·√(1/n + overlap), where s is the standard deviation with n − 1 in the denominator. With
    a single value, both ends of the interval are NaN. A missing value (None or NaN) makes the mean NaN.

    Parameters
    ----------
    values : iterable of float
        One number per seed.
    level : float
        The confidence level.
    overlap : float
        0 if each seed draws fresh samples. If seeds are random splits of one sample, their parts overlap, the values
        are correlated, and s/√n is too small. Then pass n_test/n_train of a split (the corrected resampled t of Nadeau
        & Bengio 2003, "Inference for the Generalization Error").
    """
    sample = np.asarray([math.nan if v is None else v for v in values], dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise ValueError(f"values must be one number for each seed; got an array of shape {sample.shape}.")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level}.")
    if not 0 <= overlap < math.inf:
        raise ValueError(f"overlap must be n_test/n_train of a split, or 0 for fresh samples; got {overlap}.")
    n, mean = len(sample), float(sample.mean())
    half = math.nan
    if n > 1:
        from scipy.stats import t

        half = float(t.ppf((1 + level) / 2, n - 1) * sample.std(ddof=1) * math.sqrt(1 / n + overlap))
    method = f"Student's t over {n} {'seed' if n == 1 else 'seeds'}" + (", corrected for overlap" if overlap else "")
    return Estimate(mean, mean - half, mean + half, level, method)


def paired_difference(
    a: Mapping[Any, float] | Sequence[float],
    b: Mapping[Any, float] | Sequence[float],
    *,
    level: float = 0.95,
    overlap: float = 0.0,
) -> Estimate:
    """Mean of a − b over seeds, with Student's t interval of the differences.

    Mappings from seed to value are paired by key, sequences by position. Two methods that share seeds share data and
    initial weights. The effect of a seed on both cancels in the difference, so compare methods by this interval.
    ``level`` and ``overlap`` are those of `mean_interval`.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            odd = sorted(map(str, a.keys() ^ b.keys()))
            raise ValueError(f"a and b must have the same seeds; got {', '.join(odd)} in only one of them.")
        pairs = [(a[seed], b[seed]) for seed in a]
    elif isinstance(a, Mapping) or isinstance(b, Mapping):
        raise ValueError("a and b must both be mappings from seed to value, or both sequences; got one of each.")
    elif len(a) != len(b):
        raise ValueError(f"a and b must have one value for each seed; got {len(a)} and {len(b)} values.")
    else:
        pairs = list(zip(a, b, strict=True))
    gaps = [math.nan if x is None or y is None else x - y for x, y in pairs]
    return mean_interval(gaps, level=level, overlap=overlap)


def ratio_of_means(a: Sequence[float], b: Sequence[float], *, level: float = 0.95, overlap: float = 0.0) -> Estimate:
    """Mean of a divided by the mean of b, values paired by seed, with the interval of the linearised ratio.

    With r = ā/b̄, the spread of r over seeds is that of (a − r·b)/b̄. ``level`` and ``overlap`` are those of
    `mean_interval`.
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"a and b must have one value for each seed; got {len(a)} and {len(b)} values.")
    first, second = (np.asarray([math.nan if v is None else v for v in x], dtype=np.float64) for x in (a, b))
    ratio = float(first.mean() / second.mean())
    spread = mean_interval((first - ratio * second) / second.mean(), level=level, overlap=overlap)
    return Estimate(ratio, ratio + spread.low, ratio + spread.high, level, spread.method)


def excludes_zero(difference: Estimate) -> int:
    """+1 if the whole interval lies above zero, −1 if it lies below, 0 if it contains zero or is unknown."""
    return int(difference.low > 0) - int(difference.high < 0)
