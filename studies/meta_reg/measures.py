"""Make one record from a trained network: scores, bins, γ, temperature and shifted images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import metrics
from calibrant.bilevel import NonFiniteError
from calibrant.methods import Fitted, Recalibrated, Samples
from calibrant.methods.meta_regularization import MetaRegularization, gamma_of
from calibrant.posthoc import Temperature
from studies.images import SHIFTS
from studies.meta_reg.data import PreparedImages
from studies.meta_reg.noisy import weights_by_truth

DRAWS = 50
"""Number of draws for a noise floor."""
BINS = (10, 15, 20, 50, 100, 200, 500, 1000)
"""Numbers of bins in Figure 5, and 15 as in the tables."""
DIAGRAMS = (15, 20, 50, 100)
"""Numbers of bins in the reliability diagrams, Figures 2 and 4."""
SCORES = ("error", "nll", "ece", "mce", "ace", "classwise_ece")
LEAST = 1e-12
"""Lower limit of probabilities in the NLL."""
PIECE = 2000
"""Number of images per prediction batch."""
NEAR = 1e-3
"""A γ this close to 0 or to its upper bound counts as being on the bound."""

Probs = np.ndarray


def measure(fitted: Fitted, method: Any, prepared: PreparedImages) -> dict[str, Any]:
    """All values of one trained method on the test part.

    Names that end in ``_ts`` are scores after temperature scaling on the validation part. For a method that already
    includes temperature scaling, they equal the scores without ``_ts``. Names that end in ``_val`` are scores on the
    validation part, by which variants are chosen.
    """
    network = fitted.model if isinstance(fitted, Recalibrated) else fitted
    test, val = prepared.test, prepared.task.need_val("A temperature")
    labels, val_labels = (part.labels.cpu().numpy() for part in (test, val))
    scores = logits(network, val)
    if isinstance(fitted, Recalibrated):
        temperature = float(fitted.calibrator.temperature_)
        own = temperature
    else:
        temperature, own = float(Temperature().fit(scores.numpy(), val_labels).temperature_), 1.0
    raw = logits(network, test)
    probs, scaled = (softmax(raw, t) for t in (own, temperature))
    found: dict[str, Any] = scored(probs, labels)
    found["floor"] = _floor(probs, 15, "l1")
    found["confidence_minus_accuracy"] = float(probs.max(1).mean() - (1 - found["error"]))
    found["sece"] = float(metrics.sece(probs, labels))
    found |= {"temperature": temperature}
    found |= {f"{name}_ts": value for name, value in scored(scaled, labels).items()}
    on_val = scored(softmax(scores, own), val_labels)
    found |= {f"{name}_val": on_val[name] for name in ("error", "nll", "ece")}
    found["floor_ts"] = _floor(scaled, 15, "l1")
    found |= gammas(network, method, test)
    found |= weights_by_truth(network, prepared.wrong)
    if prepared.wrong is not None:
        found["wrong_share"] = float(prepared.wrong.double().mean())
    found["bins"] = over_bins(probs, labels)
    found["diagrams"] = diagrams(probs, labels)
    found["shifts"] = shifted(network, test, labels, own, temperature)
    return _short(found)


def logits(network: Fitted, part: Samples) -> Tensor:
    """Logits of a part, computed in batches; float64 on the CPU. Logits that are not finite are an error."""
    rows = torch.arange(len(part), device=part.labels.device)
    found = torch.cat([network.logits(next(part[own].pieces())[0]) for own in rows.split(PIECE)]).double().cpu()
    if not found.isfinite().all():
        raise NonFiniteError("The logits of the trained network were not finite. Try a smaller learning rate.")
    return found


def softmax(scores: Tensor, temperature: float) -> Probs:
    """Probabilities from logits divided by a temperature."""
    return (scores / temperature).softmax(1).numpy()


def scored(probs: Probs, labels: np.ndarray) -> dict[str, float]:
    """The columns of Table 1 as fractions, with 15 bins of equal width (ACE: 15 bins of equal mass)."""
    raised = probs.clip(LEAST)
    found: tuple[Any, ...] = (
        1 - metrics.accuracy(probs, labels),
        metrics.nll(raised / raised.sum(1, keepdims=True), labels),
        metrics.ece(probs, labels, 15),
        metrics.mce(probs, labels, 15),
        metrics.ace(probs, labels, 15),
        metrics.classwise_ece(probs, labels, 15),
    )
    return {name: float(value) for name, value in zip(SCORES, found, strict=True)}


def over_bins(probs: Probs, labels: np.ndarray) -> dict[str, list[float]]:
    """ECE and MCE for each number of ``BINS``, with the noise floors of the same confidences (Figure 5)."""
    return {
        "bins": list(BINS),
        "ece": [float(metrics.ece(probs, labels, m)) for m in BINS],
        "mce": [float(metrics.mce(probs, labels, m)) for m in BINS],
        "ece_floor": [_floor(probs, m, "l1") for m in BINS],
        "mce_floor": [_floor(probs, m, "max") for m in BINS],
    }


def _floor(probs: Probs, bins: int, norm: str) -> float:
    """The mean score of a calibrated model with these confidences."""
    return metrics.noise_floor(confidence=probs.max(1), n_resamples=DRAWS, bins=bins, norm=norm).mean


def diagrams(probs: Probs, labels: np.ndarray) -> dict[str, dict[str, list[float | None]]]:
    """Share, mean confidence and accuracy of each bin, by number of bins; the means of an empty bin are None."""
    found = {}
    for bins in DIAGRAMS:
        table = metrics.reliability_bins(probs, labels, bins)
        columns = {"share": table.share, "confidence": table.confidence, "accuracy": table.accuracy}
        found[str(bins)] = {
            name: [None if np.isnan(v) else float(v) for v in values.tolist()] for name, values in columns.items()
        }
    return found


def gammas(network: Fitted, method: Any, part: Samples) -> dict[str, float | None]:
    """Mean and standard deviation of the focal γ over a part, and the share on a bound; None without a learned γ.

    A published γ-Net has no bounds, so it has no such share.
    """
    names = ("gamma_mean", "gamma_std", "gamma_on_bound")
    if not (isinstance(method, MetaRegularization) and method.outer_variable.startswith("gamma")):
        return dict.fromkeys(names)
    gamma = gamma_of(network, part).double()
    (solution,) = network.networks
    largest = getattr(solution.problem.variables, "largest", 5.0)
    bound = (gamma < NEAR) | (gamma > largest - NEAR)
    found: dict[str, float | None] = {"gamma_mean": float(gamma.mean()), "gamma_std": float(gamma.std(correction=0))}
    bounded = getattr(solution.problem.variables, "form", None) != "published"
    return found | {"gamma_on_bound": float(bound.double().mean()) if bounded else None}


def shifted(
    network: Fitted, test: Samples, labels: np.ndarray, own: float, temperature: float
) -> dict[str, dict[str, float]]:
    """Error, ECE and NLL on shifted images, without and with the temperature fitted on clean images."""
    found = {}
    for name, shift in SHIFTS.items():
        changed = Samples(shift(test.inputs), test.labels, prepare=test.prepare)
        scores = logits(network, changed)
        both = {"": scored(softmax(scores, own), labels), "_ts": scored(softmax(scores, temperature), labels)}
        found[name] = {f"{m}{end}": both[end][m] for end in both for m in ("error", "ece", "nll")}
    return found


def _short(value: Any) -> Any:
    """Round to six significant digits: more than the noise allows, and half of the file size."""
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
