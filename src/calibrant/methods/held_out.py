"""The last step of cross-fitting: a temperature, class biases and a lapse rate from held-out logits, under a prior."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit, softmax

from calibrant.data.copies import independent_size
from calibrant.methods.pool import RARE, even_share, lapsing_loss, least_lapse


class LastStep(NamedTuple):
    """``q(z) = (1 − λ)·softmax(z/T + b) + λ/C``."""

    temperature: float
    bias: np.ndarray
    lapse: float
    loss: float
    """The total log-loss of all samples plus the penalty of the prior; lower means better logits."""


def fit_last_step(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    groups: np.ndarray | None = None,
    spread: float = 0.5,
    lapse_spread: float = 2.0,
) -> LastStep:
    """T, b and λ with the lowest penalised log-loss.

    The priors are N(0, spread²) for ``log T`` and each ``b_c``, and N(−6, lapse_spread²) for the log-odds of λ.

    This is temperature scaling (Guo et al. 2017) with the biases of Alexandari et al. 2020: L2 shrinks a network
    towards equal class probabilities, which a temperature alone cannot correct. λ is the lapse rate of Wichmann & Hill
    2001: if a share of the labels is wrong however clear the input is, confidence has an upper limit that no
    temperature can describe. The prior counts as much as a few samples. Without it, T would go to 0 for networks that
    classify every held-out sample correctly.

    Parameters
    ----------
    logits, labels : (n, C) and (n,)
    weights : (n,), optional; their scale does not matter. The more they differ, the fewer samples they count as
    groups : (n,), optional; a group number per sample. Samples of one group count as fewer independent samples
    spread, lapse_spread : standard deviations of the priors
    """
    count = logits.shape[1]
    share = np.ones(len(labels)) if weights is None else weights
    size = independent_size(labels, softmax(logits, axis=1), groups) * even_share(share)
    share = share * (size / share.sum())
    centre = np.concatenate([[0.0, RARE], np.zeros(count)])
    scale = np.concatenate([[spread, lapse_spread], np.full(count, spread)])

    def cost(values: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = logits * np.exp(-values[0])
        loss, slope, to_lapse = lapsing_loss(scaled + values[2:], labels, share, expit(values[1]))
        away = (values - centre) / scale
        return 0.5 * away @ away + loss, away / scale + np.concatenate(
            [[-(slope * scaled).sum(), to_lapse], slope.sum(0)]
        )

    bounds = [(-3.0, 3.0), (logit(least_lapse(size, count)), 3.0)] + [(-3.0, 3.0)] * count
    best = minimize(cost, centre, jac=True, method="L-BFGS-B", bounds=bounds)
    return LastStep(float(np.exp(best.x[0])), best.x[2:], float(expit(best.x[1])), float(best.fun))
