"""A bound on the risk of all thresholds and windows at once, valid for a window chosen by looking at it.

For an accepted set A let E(A) = P(c ∈ A, wrong) and K(A) = P(c ∈ A, right). The risk is R(A) = E / (E + K), which grows
with E and falls with K. A window (low, high) accepts A = {c ≥ high} ∪ {c ≤ low}. Over all real `high` the sets
{c ≥ high, wrong} are nested, and so are the complements of {c ≥ high, right}; likewise for `low`. The band of
`calibrant.selective.band` bounds each of these four families for all real limits at once.

**Theorem.** Let the samples be independent, from the same distribution as future data (any distribution,
with or without atoms). With probability at least 1 − δ, for *every* window at once, ::

    R(A) ≤ Ē / (Ē + K̲),   Ē = B[wrong above] + B[wrong below],   K̲ = b[right above] + b[right below]

where B_s = `mass_upper_bounds(n, δ_E)[s]` and b_k = 1 − `mass_upper_bounds(n, δ_K)[n − k]`. A side that the window
leaves out (low = −inf, high = inf) adds nothing.

*Proof.* The lemma for each of the four families, whose levels add up to δ = 2 δ_E + 2 δ_K; for thresholds
alone there are two families and δ = δ_E + δ_K. Then E ≤ Ē and K ≥ K̲ everywhere, and R is monotone in both.
∎

Since all windows are covered at once, the bound is also valid for the window that was picked because it looked best.
Most of δ is spent on the errors: they are few, so their count is the uncertain part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.base.settings import check_fraction
from calibrant.selective.band import mass_upper_bounds
from calibrant.selective.curve import as_pair
from calibrant.selective.rule import RejectionRule, Window

_SHARE_FOR_ERRORS = 0.8
# Limits on each side in a two-sided search. The guarantee does not depend on their choice.
_MOST_LIMITS = 400


@dataclass(frozen=True)
class UniformRiskBound:
    """Upper bounds on the risk of every window. All of them hold together with probability `level`.

    Attributes
    ----------
    n, level : int and float
        Sample size and confidence level.
    two_sided : bool
        Whether windows with a finite `low` are covered; if not, the bound for thresholds is tighter.
    """

    n: int
    level: float
    two_sided: bool
    _wrong: np.ndarray = field(repr=False)
    _right: np.ndarray = field(repr=False)

    def risk(self, low: Any = -np.inf, high: Any = np.inf) -> Any:
        """Bound the risk of accepting c ≤ low or c ≥ high, for numbers or arrays; 1 if nothing is known."""
        low, high = np.broadcast_arrays(np.asarray(low, np.float64), np.asarray(high, np.float64))
        if not np.all(low <= high):
            raise ValueError(
                "low must be at most high; got a pair with low above high. Predictions between the two are withheld."
            )
        if not self.two_sided and np.any(low > -np.inf):
            raise ValueError(
                "low must be -inf, since this bound was computed for thresholds only; use "
                "uniform_risk_bound(..., two_sided=True) for windows with a lower limit."
            )
        above = self.sides(high)
        # low = high accepts everything, and counts each point once.
        below = self.sides(np.where(low < high, low, np.nextafter(low, -np.inf)))
        errors = np.where(high < np.inf, above[0], 0) + np.where(low > -np.inf, below[1], 0)
        correct = above[2] + below[3]  # b_0 = 0, so a side without correct predictions adds nothing by itself
        bound = np.ones_like(errors)
        np.divide(errors, errors + correct, out=bound, where=errors + correct > 0)
        return float(bound) if bound.ndim == 0 else bound

    def sides(self, limits: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Bound the mass on either side of each limit: errors above and below, correct predictions above and below.

        With E = (errors above `high`) + (errors below `low`) and K likewise, the bound of a window with low < high is
        E / (E + K). This is what `risk` computes, in a form that can be tabulated.
        """
        delta = (1 - self.level) / (2 if self.two_sided else 1)
        upper = mass_upper_bounds(self.n, delta * _SHARE_FOR_ERRORS)
        lower = 1 - mass_upper_bounds(self.n, delta * (1 - _SHARE_FOR_ERRORS))[::-1]
        limits = np.asarray(limits, np.float64)
        above = [len(values) - np.searchsorted(values, limits) for values in (self._wrong, self._right)]
        below = [np.searchsorted(values, limits, side="right") for values in (self._wrong, self._right)]
        return upper[above[0]], upper[below[0]], lower[above[1]], lower[below[1]]

    def rule_for(self, window: Window) -> RejectionRule:
        """Return the rule for a window chosen by any means, with its bound."""
        return self._rule(window, self.risk(window.low, window.high), "none", None)

    def best_window(self, risk: float) -> RejectionRule:
        """Return the window with the largest coverage on the sample whose bound is at most `risk`.

        It searches thresholds, and two-sided windows if the bound covers them. Limits are confidences of the sample (in
        the two-sided search at most 400 on each side, evenly spread). `found` is False if no window meets the target.
        """
        risk = check_fraction(risk, "risk")
        values = np.unique(np.concatenate([self._wrong, self._right]))
        if self.two_sided and len(values) > _MOST_LIMITS:
            values = values[np.linspace(0, len(values) - 1, _MOST_LIMITS).round().astype(int)]
        lows = np.concatenate([[-np.inf], values]) if self.two_sided else np.array([-np.inf])
        low, high = np.meshgrid(lows, values, indexing="ij")
        pairs = (low < high).ravel()
        low, high = low.ravel()[pairs], high.ravel()[pairs]
        bounds = self.risk(low, high)
        coverage = self._coverage(low, high)
        allowed = np.flatnonzero(bounds <= risk)
        if not len(allowed):
            return self._rule(None, float(bounds.min()), "risk", risk)
        # Among windows of equal coverage, take the smaller bound.
        best = allowed[np.lexsort((bounds[allowed], -coverage[allowed]))[0]]
        return self._rule(Window(low[best], high[best]), float(bounds[best]), "risk", risk)

    def _coverage(self, low: Any, high: Any) -> np.ndarray:
        values = np.sort(np.concatenate([self._wrong, self._right]))
        return (self.n - np.searchsorted(values, high) + np.searchsorted(values, low, side="right")) / self.n

    def _rule(self, window: Window | None, bound: float, goal: str, target: float | None) -> RejectionRule:
        coverage, risk = 0.0, np.nan
        if window is not None:
            wrong, right = (int(window.accepts(values).sum()) for values in (self._wrong, self._right))
            coverage = (wrong + right) / self.n
            risk = wrong / (wrong + right) if wrong + right else np.nan
        kind = "uniform bound over " + ("all windows" if self.two_sided else "all thresholds")
        return RejectionRule(window, goal, target, kind, self.n, coverage, risk, self.level, bound)


def uniform_risk_bound(
    confidence: Any, correct: Any, *, level: float = 0.95, two_sided: bool = True
) -> UniformRiskBound:
    """Bound the risk of all thresholds and windows at once (theorem and proof in the module's docstring).

    Parameters
    ----------
    confidence, correct : arrays or tensors of shape (n,)
        A sample that was not used to train or calibrate the model, shape (n,) each. `confidence` may be any score in
        [0, 1], for instance the probability of class 1 of two; `correct` says whether the prediction made from it is
        right.
    level : float
        Probability with which all the bounds hold together.
    two_sided : bool
        Cover windows with a lower limit too; False gives tighter bounds on thresholds alone.

    Returns
    -------
    UniformRiskBound

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant.selective import uniform_risk_bound
    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.uniform(0.5, 1, 2000)
    >>> bound = uniform_risk_bound(confidence, rng.uniform(size=2000) < confidence)
    >>> bool(bound.risk(high=0.9) < bound.risk(high=0.5) < 1)
    True
    """
    level = check_fraction(level, "level")
    conf, hits = as_pair(confidence, correct)
    return UniformRiskBound(len(conf), level, two_sided, np.sort(conf[~hits]), np.sort(conf[hits]))
