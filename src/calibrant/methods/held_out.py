"""The last step of cross-fitting: a temperature and class biases from held-out logits, under a prior."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax


def temperature_and_bias(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, *, spread: float = 0.5
) -> tuple[float, np.ndarray]:
    """T and b of least log-loss of ``softmax(z/T + b)``, with ``log T`` and each ``b_c`` drawn from N(0, spread²).

    Temperature scaling (Guo et al. 2017) with the biases of Alexandari et al. 2020: L2 shrinks a network towards equal
    classes, and a temperature alone can only stretch that. The prior weighs as much as a handful of samples. Without
    one, networks that are right on every held-out sample would be sharpened without end.

    Parameters
    ----------
    logits, labels : (n, C) and (n,)
    weights : (n,), optional; scaled to mean 1
    """
    rows, count = np.arange(len(labels)), logits.shape[1]
    share = np.ones(len(labels)) if weights is None else weights * (len(labels) / weights.sum())

    def cost(values: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = logits * np.exp(-values[0])
        log_probs = log_softmax(scaled + values[1:], axis=1)
        slope = np.exp(log_probs)
        slope[rows, labels] -= 1
        slope *= share[:, None]
        prior = values / spread**2
        value = 0.5 * prior @ values - share @ log_probs[rows, labels]
        return value, prior + np.concatenate([[-(slope * scaled).sum()], slope.sum(0)])

    bounds = [(-3.0, 3.0)] + [(-3.0, 3.0)] * count
    found = minimize(cost, np.zeros(1 + count), jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(np.exp(found[0])), found[1:]
