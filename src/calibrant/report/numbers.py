"""Numbers over seeds: means and paired differences with intervals, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.metrics import Estimate

MISSING = "–"


def mean_interval(values: Iterable[float], *, level: float = 0.95, overlap: float = 0.0) -> Estimate:
    """Mean of values that differ only by their seed, with Student's t interval.

    x̄ ± t_{n−1, (1+level)/2} · s·√(1/n + overlap), where s is the standard deviation with n − 1 in the denominator. A
    single value has no interval: its ends are NaN.

    ``overlap`` is 0 if seeds draw fresh samples. If they are random splits of one sample, the values are correlated,
    and s/√n is too small; ``overlap`` is then n_test/n_train of a split (the corrected resampled t of Nadeau & Bengio
    2003, "Inference for the Generalization Error").
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
    told = f"Student's t over {n} {'seed' if n == 1 else 'seeds'}" + (", corrected for overlap" if overlap else "")
    return Estimate(mean, mean - half, mean + half, level, told)


def paired_difference(
    a: Mapping[Any, float] | Sequence[float],
    b: Mapping[Any, float] | Sequence[float],
    *,
    level: float = 0.95,
    overlap: float = 0.0,
) -> Estimate:
    """Mean of a − b over seeds, with Student's t interval of the differences.

    Mappings (seed to value, as from `by_seed`) are paired by their keys, sequences by their order. Methods that share
    seeds share data and initial parameters. Effects of a seed on both methods cancel, so use this interval to compare
    them. ``overlap`` is as in `mean_interval`.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            odd = sorted(map(str, a.keys() ^ b.keys()))
            raise ValueError(f"a and b must have the same seeds; only one of them has {', '.join(odd)}.")
        pairs = [(a[seed], b[seed]) for seed in a]
    elif isinstance(a, Mapping) or isinstance(b, Mapping):
        raise ValueError("a and b must both be mappings from seed to value, or both sequences.")
    elif len(a) != len(b):
        raise ValueError(f"a and b must have one value for each seed; got {len(a)} and {len(b)} values.")
    else:
        pairs = list(zip(a, b, strict=True))
    gaps = [math.nan if x is None or y is None else x - y for x, y in pairs]
    return mean_interval(gaps, level=level, overlap=overlap)


def ratio_of_means(a: Sequence[float], b: Sequence[float], *, level: float = 0.95, overlap: float = 0.0) -> Estimate:
    """Mean of a over mean of b, values paired by seed, with the interval of the linearised ratio.

    With r = ā/b̄ the spread of r over seeds is that of (a − r·b)/b̄; Student's t and ``overlap`` as in `mean_interval`.
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"a and b must have one value for each seed; got {len(a)} and {len(b)} values.")
    first, second = (np.asarray([math.nan if v is None else v for v in x], dtype=np.float64) for x in (a, b))
    ratio = float(first.mean() / second.mean())
    spread = mean_interval((first - ratio * second) / second.mean(), level=level, overlap=overlap)
    return Estimate(ratio, ratio + spread.low, ratio + spread.high, level, spread.method)


def by_seed(records: Iterable[Mapping[str, Any]], metric: str, **where: Any) -> dict[Any, float]:
    """Return a metric by seed, from the records whose fields equal `where`: `by_seed(records, "nll", method="bo4sc")`.

    Two matching records with the same seed are an error: `where` must name further fields.
    """
    found: dict[Any, float] = {}
    wanted = where.items()
    for record in records:
        if not wanted <= record.items():
            continue
        if record["seed"] in found:
            raise ValueError(
                f"where must select one record per seed; {where} selects several of seed {record['seed']}."
            )
        found[record["seed"]] = record[metric]
    return found


def excludes_zero(difference: Estimate) -> int:
    """+1 if the whole interval lies above zero, −1 if it lies below, 0 if it contains zero or is unknown."""
    return int(difference.low > 0) - int(difference.high < 0)


def format_number(value: Any, digits: int = 3) -> str:
    """Write one value: numbers with `digits` decimals, `Estimate` with its interval, None and NaN as a dash.

    A symmetric interval is written "0.016 ± 0.002", another one "0.016 [0.012, 0.024]". Whole numbers and text are not
    changed.
    """
    if isinstance(value, Estimate):
        return _format_estimate(value, digits)
    if value is None:
        return MISSING
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return MISSING if math.isnan(value) else _fixed(float(value), digits)
    return str(value)


def _format_estimate(value: Estimate, digits: int) -> str:
    centre = format_number(float(value.value), digits)
    if not math.isfinite(value.low) or not math.isfinite(value.high):
        return centre
    half = (value.high - value.low) / 2
    if abs(value.value - (value.low + value.high) / 2) > 1e-6 * max(half, 1e-12):
        return f"{centre} [{_fixed(value.low, digits)}, {_fixed(value.high, digits)}]"
    smallest = 10.0**-digits
    written = _fixed(half, digits) if half == 0 or half >= smallest / 2 else f"<{_fixed(smallest, digits)}"
    return f"{centre} ± {written}"


def _fixed(value: float, digits: int) -> str:
    """Fixed decimals with a real minus sign; a value that rounds to zero has no sign."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")
