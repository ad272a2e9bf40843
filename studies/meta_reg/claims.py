"""Check the paper's claims that need no training: compute each and compare it with the printed one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from calibrant import metrics
from calibrant.bilevel import GammaNet
from calibrant.losses import dece, sece
from calibrant.metrics.kernel import nadaraya_watson
from calibrant.models import resnet18
from calibrant.report import format_number
from studies.meta_reg.paper import claimed_gains, paper, printed_gains

BANDWIDTH = 0.01
"""The paper's bandwidth h."""


MISSING = "not yet measured"


class Claim(NamedTuple):
    """A claim: the paper's value, our measurement, whether the claim holds (None: not measured), and a note."""

    statement: str
    paper: str
    measured: str = MISSING
    holds: bool | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the claim holds, as a word."""
        return MISSING if self.holds is None else "yes" if self.holds else "no"


@cache
def computed() -> tuple[Claim, ...]:
    """The claims that arithmetic or simulated predictions can decide; computed once per process."""
    return unbiased(), upper_bound(), kernel_bound(), dirac(), cheaper(), parameters(), gains()


def made_up(samples: int, *, seed: int, sharpening: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Simulate confidences and outcomes of a calibrated model, or of an over-confident one if ``sharpening`` > 1.

    The true probability is ½ + ½·Beta(4, 1), and the outcome is drawn with it. The log-odds of the confidence are the
    true log-odds times ``sharpening``.
    """
    rng = np.random.default_rng(seed)
    right = 0.5 + 0.5 * rng.beta(4, 1, samples)
    correct = rng.random(samples) < right
    odds = np.log(right / np.maximum(1 - right, 1e-12))
    return 1 / (1 + np.exp(-sharpening * odds)), correct


def unbiased() -> Claim:
    """Bias of SECE as an estimator of the calibration error, on calibrated predictions, whose error is 0."""

    def bias(samples: int, draws: int) -> float:
        pairs = (made_up(samples, seed=seed) for seed in range(draws))
        return float(np.mean([metrics.sece(confidence=c, correct=r, bandwidth=BANDWIDTH) for c, r in pairs]))

    biases = {n: bias(n, draws) for n, draws in ((128, 40), (1024, 20), (10_000, 10))}
    return Claim(
        "SECE is an unbiased estimator of the calibration error",
        "unbiased",
        "; ".join(f"n = {n:,}: {value:.4f}" for n, value in biases.items()),
        max(biases.values()) < 1e-3,
        "mean of SECE over draws of a calibrated model, whose error is 0. The absolute value of a noisy mean is above "
        "0, and decreases with more samples",
    )


def gaps_below(estimate: Callable[..., float], seeds: int) -> np.ndarray:
    """SECE minus another estimate of the calibration error, on simulated samples from under- to over-confident."""
    gaps = []
    for sharpening in (0.5, 1.0, 2.0, 4.0):
        for seed in range(seeds):
            confidence, correct = made_up(2000, seed=seed, sharpening=sharpening)
            upper = metrics.sece(confidence=confidence, correct=correct, bandwidth=BANDWIDTH)
            gaps.append(upper - estimate(confidence=confidence, correct=correct))
    return np.array(gaps)


def upper_bound() -> Claim:
    """Eq. (9), Eq. (10) and Eq. (11) of the second paper: SECE is an upper bound of ECE."""
    gaps = gaps_below(metrics.ece, 10)
    return Claim(
        "SECE is an upper bound of ECE (Eq. 9–11)",
        "SECE ≥ ECE always",
        f"in {100 * (gaps >= 0).mean():.0f} % of {len(gaps)} simulated samples; lowest difference "
        f"{format_number(gaps.min(), 4)}",
        bool((gaps >= 0).all()),
        "2,000 predictions each, from under- to over-confident; ECE with 15 bins, h = 0.01. Eq. (10) replaces ECE by a "
        "product of two integrals, each at most 1",
    )


def kernel_bound() -> Claim:
    """Eq. (11) of the second paper: SECE is an upper bound of ÊCE¹, which is Eq. (8) with d = 1."""
    gaps = gaps_below(partial(metrics.kde_ece, bandwidth=BANDWIDTH), 5)
    return Claim(
        "SECE is an upper bound of the KDE estimate of ECE (Eq. 11)",
        "SECE ≥ ÊCE¹ always",
        f"in {100 * (gaps >= 0).mean():.0f} % of {len(gaps)} simulated samples; lowest difference "
        f"{format_number(gaps.min(), 4)}, highest {format_number(gaps.max(), 4)}",
        bool((gaps >= 0).all()),
        "2,000 predictions each, from under- to over-confident; the same h = 0.01 for both. SECE is a mean over the "
        "sample, the KDE estimate an integral over the smoothed density of the confidence",
    )


def dirac() -> Claim:
    """Section 4.2: with a Dirac kernel, SECE is the Brier score."""
    confidence, correct = made_up(500, seed=0, sharpening=2.0)
    z, right = torch.as_tensor(confidence), torch.as_tensor(correct, dtype=torch.float64)
    gap = nadaraya_watson(z, right, 1e-9) - z
    absolute, squared = float(gap.abs().mean()), float(gap.square().mean())
    brier = float((right - z).square().mean())
    return Claim(
        "With a Dirac kernel SECE is the Brier score",
        "equal",
        f"Eq. (7) {absolute:.4f}, squared form {squared:.4f}, Brier score {brier:.4f}",
        abs(absolute - brier) < 1e-9,
        "the squared form (order = 2) equals the Brier score of the confidence; Eq. (7), as printed, is the absolute "
        "form",
    )


def cheaper(sizes: Sequence[int] = (128, 1024), repeats: int = 10) -> Claim:
    """Section 6: SECE costs less than DECE, for value and gradient. The paper's batch has 128 samples, ours 1,024.

    The page shows no times, which differ between machines.
    """
    costs = [[_seconds(loss, samples, repeats) for loss in (sece, dece)] for samples in sizes]
    slower = costs[-1][0] > costs[-1][1]
    return Claim(
        "SECE costs less than DECE",
        "more efficient",
        f"SECE takes {'more' if slower else 'less'} time for {sizes[-1]:,} predictions",
        all(a < b for a, b in costs),
        f"value and gradient of {' and '.join(f'{n:,}' for n in sizes)} predictions (the paper's batch and our outer "
        f"batch) with 10 classes, CPU time of one thread, best of {repeats}. SECE compares all pairs of samples; DECE "
        "compares samples with 15 bins. Holds if SECE is cheaper for both",
    )


def _seconds(loss: Callable[[Tensor, Tensor], Tensor], samples: int, repeats: int) -> float:
    """Least CPU time of a loss and its gradient on one thread; neither other programs nor waiting threads count."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(samples, 10, generator=generator) * 3).requires_grad_()
    labels = torch.randint(0, 10, (samples,), generator=generator)
    times = []
    with threadpool_limits(1):
        for _ in range(repeats + 1):  # the first call is slower, and not the least
            begin = time.process_time()
            torch.autograd.grad(loss(logits, labels), logits)
            times.append(time.process_time() - begin)
    return min(times)


def parameters() -> Claim:
    """Section 6: γ-Net adds 0.46 % to the parameters (100 classes)."""
    network = resnet18(100)
    net = GammaNet(network.fc.in_features, 100, form="published")
    added, base = (sum(p.numel() for p in module.parameters()) for module in (net, network))
    share, said = 100 * added / base, paper()["claims"]["parameters"]
    return Claim(
        "γ-Net adds about 0.46 % of parameters during training",
        f"{said} %",
        f"{share:.2f} %",
        round(share, 2) == said,
        f"{added:,} parameters, compared with {base:,} of ResNet-18 with 100 classes",
    )


def gains() -> Claim:
    """Section 5.1 compared with the paper's own Table 1."""
    said, computed_gains = claimed_gains(), printed_gains()
    stated, printed = (
        ", ".join(f"{m.upper()} {100 * v:.3f}" for m, v in gains_by_metric.items())
        for gains_by_metric in (said, computed_gains)
    )
    return Claim(
        "Gain of FLγ-SECE over CE-DECE, mean over three data sets, in points (the paper's own arithmetic)",
        stated,
        f"from its Table 1: {printed}",
        all(abs(said[m] - computed_gains[m]) < 1e-5 for m in said),
        "the means of Table 1's differences",
    )
