"""Make one record from a trained network: scores, bins, γ, temperature and shifted images."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from calibrant import metrics
from calibrant.bilevel import NonFiniteError
from calibrant.methods import Fitted, Recalibrated, Samples
from calibrant.methods.meta_regularization import MetaRegularization, gamma_of
from calibrant.posthoc import Temperature
from studies.images import SHIFTS
from studies.meta_reg.data import PreparedImages

DRAWS = 50
"""Number of draws for a noise floor."""
BINS = (10, 15, 20, 50, 100, 200, 500, 1000)
"""Numbers of bins in Figure 5, and 15 as in the tables."""
DIAGRAMS = (15, 20, 50, 100)
"""Numbers of bins in the reliability diagrams, Figures 2 and 4."""
SCORES = ("error", "nll", "ece", "mce", "ace", "classwise_ece")
LEAST = 1e-12
"""Lower limit of probabilities in the NLL."""
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
    on_val, on_test = logits(network, val), logits(network, test)
    if isinstance(fitted, Recalibrated):
        temperature = method_temperature = float(fitted.calibrator.temperature_)
    else:
        temperature, method_temperature = float(Temperature().fit(on_val.numpy(), val_labels).temperature_), 1.0
    probs, scaled = (softmax(on_test, t) for t in (method_temperature, temperature))
    scores, val_scores = scored(probs, labels), scored(softmax(on_val, method_temperature), val_labels)
    record: dict[str, Any] = {
        **scores,
        "floor": _floor(probs),
        "confidence_minus_accuracy": float(probs.max(1).mean() - (1 - scores["error"])),
        "sece": float(metrics.sece(probs, labels)),
        "temperature": temperature,
        **{f"{name}_ts": value for name, value in scored(scaled, labels).items()},
        **{f"{name}_val": val_scores[name] for name in ("error", "nll", "ece")},
        "floor_ts": _floor(scaled),
        **gammas(network, method, test),
        **weights_by_truth(network, prepared.wrong),
        "bins": over_bins(probs, labels),
        "diagrams": diagrams(probs, labels),
        "shifts": shifted(network, test, labels, method_temperature, temperature),
    }
    if prepared.wrong is not None:
        record["wrong_share"] = float(prepared.wrong.double().mean())
    return _short(record)


def logits(network: Fitted, part: Samples) -> Tensor:
    """Logits of a part; float64 on the CPU. Logits that are not finite are an error."""
    scores, _ = part.predicted(network.logits)
    if not scores.isfinite().all():
        raise NonFiniteError("The logits of the trained network were not finite. Try a smaller learning rate.")
    return scores.double()


def softmax(scores: Tensor, temperature: float) -> Probs:
    """Probabilities from logits divided by a temperature."""
    return (scores / temperature).softmax(1).numpy()


def scored(probs: Probs, labels: np.ndarray) -> dict[str, float]:
    """The columns of Table 1 as fractions, with 15 bins of equal width (ACE: 15 bins of equal mass)."""
    raised = probs.clip(LEAST)
    values: tuple[Any, ...] = (
        1 - metrics.accuracy(probs, labels),
        metrics.nll(raised / raised.sum(1, keepdims=True), labels),
        metrics.ece(probs, labels, 15),
        metrics.mce(probs, labels, 15),
        metrics.ace(probs, labels, 15),
        metrics.classwise_ece(probs, labels, 15),
    )
    return {name: float(value) for name, value in zip(SCORES, values, strict=True)}


def over_bins(probs: Probs, labels: np.ndarray) -> dict[str, list[float]]:
    """ECE and MCE for each number of ``BINS``, with the noise floors of the same confidences (Figure 5)."""
    return {
        "bins": list(BINS),
        "ece": [float(metrics.ece(probs, labels, m)) for m in BINS],
        "mce": [float(metrics.mce(probs, labels, m)) for m in BINS],
        "ece_floor": [_floor(probs, m) for m in BINS],
        "mce_floor": [_floor(probs, m, "max") for m in BINS],
    }


def _floor(probs: Probs, bins: int = 15, norm: str = "l1") -> float:
    """The mean score of a calibrated model with these confidences."""
    return metrics.noise_floor(confidence=probs.max(1), n_resamples=DRAWS, bins=bins, norm=norm).mean


def diagrams(probs: Probs, labels: np.ndarray) -> dict[str, dict[str, list[float | None]]]:
    """Share, mean confidence and accuracy of each bin, by number of bins; the means of an empty bin are None."""
    tables = {str(bins): metrics.reliability_bins(probs, labels, bins) for bins in DIAGRAMS}
    return {
        bins: {
            name: [None if np.isnan(v) else float(v) for v in getattr(table, name).tolist()]
            for name in ("share", "confidence", "accuracy")
        }
        for bins, table in tables.items()
    }


def gammas(network: Fitted, method: Any, part: Samples) -> dict[str, float | None]:
    """Mean and standard deviation of the focal γ over a part, and the share on a bound; None without a learned γ.

    A published γ-Net has no bounds, so it has no such share.
    """
    if not (isinstance(method, MetaRegularization) and method.outer_variable.startswith("gamma")):
        return dict.fromkeys(("gamma_mean", "gamma_std", "gamma_on_bound"))
    gamma = gamma_of(network, part).double()
    (solution,) = network.networks
    variables = solution.problem.variables
    on_bound = (gamma < NEAR) | (gamma > getattr(variables, "largest", 5.0) - NEAR)
    bounded = getattr(variables, "form", None) != "published"
    return {
        "gamma_mean": float(gamma.mean()),
        "gamma_std": float(gamma.std(correction=0)),
        "gamma_on_bound": float(on_bound.double().mean()) if bounded else None,
    }


def weights_by_truth(fitted: Fitted, wrong: Tensor | None) -> dict[str, float | None]:
    """The mean weights of training samples with a right and with a wrong label; None without weights."""
    weights = fitted.extras.get("sample_weights")
    if weights is None or wrong is None:
        return {"weight_right": None, "weight_wrong": None}
    return {"weight_right": float(weights[~wrong.cpu()].mean()), "weight_wrong": float(weights[wrong.cpu()].mean())}


def shifted(
    network: Fitted, test: Samples, labels: np.ndarray, method_temperature: float, temperature: float
) -> dict[str, dict[str, float]]:
    """Error, ECE and NLL on shifted images, without and with the temperature fitted on clean images."""
    by_shift: dict[str, dict[str, float]] = {}
    for name, shift in SHIFTS.items():
        scores = logits(network, Samples(shift(test.inputs), test.labels, prepare=test.prepare))
        for end, t in (("", method_temperature), ("_ts", temperature)):
            values = scored(softmax(scores, t), labels)
            by_shift.setdefault(name, {}).update({f"{m}{end}": values[m] for m in ("error", "ece", "nll")})
    return by_shift


def _short(value: Any) -> Any:
    """Round to six significant digits: more than the noise allows, and half of the file size."""
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
