"""The last step of cross-fitting: a temperature, class biases and a lapse rate from held-out logits, under a prior."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logit, softmax

from calibrant.data.copies import independent_size
from calibrant.methods.pool import least_lapse

_RARE = -6.0
"""Log-odds of a lapse that are expected before any label is seen: 0.25 %."""


class LastStep(NamedTuple):
    """``q(z) = (1 − λ)·softmax(z/T + b) + λ/C``."""

    temperature: float
    bias: np.ndarray
    lapse: float
    loss: float
    """The log-loss of all samples together, with the prior's share: the less, the better the logits."""


def fit_last_step(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    groups: np.ndarray | None = None,
    spread: float = 0.5,
    lapse_spread: float = 2.0,
) -> LastStep:
    """T, b and λ of least log-loss, with ``log T`` and each ``b_c`` drawn from N(0, spread²), λ's log-odds around −6.

    Temperature scaling (Guo et al. 2017) with the biases of Alexandari et al. 2020: L2 shrinks a network towards equal
    classes, and a temperature alone can only stretch that. λ is the lapse rate of Wichmann & Hill 2001: where a share
    of the labels is wrong however clear the input, confidence has a ceiling, which no temperature can describe. The
    prior weighs as much as a handful of samples. Without one, networks that are right on every held-out sample would be
    sharpened without end.

    Parameters
    ----------
    logits, labels : (n, C) and (n,)
    weights : (n,), optional; their scale does not matter
    groups : (n,), optional; numbers of samples that belong together, which count as fewer
    spread, lapse_spread : standard deviations of the priors
    """
    rows, count = np.arange(len(labels)), logits.shape[1]
    size = independent_size(labels, softmax(logits, axis=1), groups)
    share = np.ones(len(labels)) if weights is None else weights
    share = share * (size / share.sum())
    centre = np.concatenate([[0.0, _RARE], np.zeros(count)])
    scale = np.concatenate([[spread, lapse_spread], np.full(count, spread)])

    def cost(values: np.ndarray) -> tuple[float, np.ndarray]:
        scaled, lapse = logits * np.exp(-values[0]), expit(values[1])
        probs = np.exp(log_softmax(scaled + values[2:], axis=1))
        own = probs[rows, labels]
        mixed = (1 - lapse) * own + lapse / count
        slope = probs
        slope[rows, labels] -= 1
        slope *= (share * (1 - lapse) * own / mixed)[:, None]
        to_lapse = -lapse * (1 - lapse) * (share @ ((1 / count - own) / mixed))
        away = (values - centre) / scale
        value = 0.5 * away @ away - share @ np.log(mixed)
        return value, away / scale + np.concatenate([[-(slope * scaled).sum(), to_lapse], slope.sum(0)])

    bounds = [(-3.0, 3.0), (logit(least_lapse(size, count)), 3.0)] + [(-3.0, 3.0)] * count
    best = minimize(cost, centre, jac=True, method="L-BFGS-B", bounds=bounds)
    return LastStep(float(np.exp(best.x[0])), best.x[2:], float(expit(best.x[1])), float(best.fun))
