"""The table of calibrators, read by tests, benchmarks and the command line; a new calibrator is one more row."""

from __future__ import annotations

from typing import Any, NamedTuple

from calibrant.posthoc._base import Calibrator
from calibrant.posthoc.binning import BBQ, HistogramBinning, ScalingBinning
from calibrant.posthoc.isotonic import Isotonic, IsotonicConfidence, OrderPreservingIsotonic
from calibrant.posthoc.matrix import Dirichlet, Matrix, StructuredMatrix, Vector
from calibrant.posthoc.neural import NeuralCalibrator
from calibrant.posthoc.platt import Beta, Platt
from calibrant.posthoc.polynomial import ShapeRestrictedPolynomial
from calibrant.posthoc.temperature import AttendedTemperature, EnsembleTemperature, Temperature

CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": Temperature,
    "ensemble-temperature": EnsembleTemperature,
    "attended-temperature": AttendedTemperature,
    "vector": Vector,
    "matrix": Matrix,
    "structured-matrix": StructuredMatrix,
    "dirichlet": Dirichlet,
    "platt": Platt,
    "beta": Beta,
    "isotonic": Isotonic,
    "isotonic-confidence": IsotonicConfidence,
    "order-preserving-isotonic": OrderPreservingIsotonic,
    "histogram": HistogramBinning,
    "bbq": BBQ,
    "scaling-binning": ScalingBinning,
    "polynomial": ShapeRestrictedPolynomial,
    "neural": NeuralCalibrator,
}

AUTO = "auto"
"""The name by which `make_calibrator` makes `calibrant.posthoc.Auto`."""


class Description(NamedTuple):
    """One row of `describe`."""

    name: str
    summary: str
    can_change_prediction: bool
    can_fall_below_chance: bool


def check_calibrator(name: Any, argument: str = "name") -> None:
    """Raise an error that names the argument if there is no calibrator of this name."""
    if not isinstance(name, str) or name not in (AUTO, *CALIBRATORS):
        raise ValueError(f"{argument} must be one of {AUTO}, {', '.join(CALIBRATORS)}; got {name!r}.")


def make_calibrator(name: str, **params: Any) -> Calibrator:
    """Make a calibrator by its name in the table: ``make_calibrator("vector", l2=0.1)``; "auto" chooses the best."""
    check_calibrator(name)
    if name == AUTO:
        from calibrant.posthoc.auto import Auto  # imported here because it depends on this table

        return Auto(**params)
    return CALIBRATORS[name](**params)


def confidence_calibrator(name: str, **params: Any) -> Calibrator:
    """Make a calibrator for a confidence, where nothing is known of the other classes: ``fit(confidence, correct)``.

    It treats "the prediction was right" as class 1 of two, so ``predict_proba(confidence)[:, 1]`` is the calibrated
    confidence. Calibrators that keep the predicted class keep each confidence on its side of 1/2, even if predictions
    with a confidence of 0.4 are right in 20 % of the cases. They are refused, except isotonic-confidence, which is
    `Isotonic` here. "auto" compares the others.

    >>> import numpy as np
    >>> confidence, correct = np.linspace(0.3, 0.9, 600), np.tile([True, False, False], 200)
    >>> calibrator = confidence_calibrator("platt").fit(confidence, correct)
    >>> bool(calibrator.predict_proba(confidence)[:, 1].max() < 0.4)
    True
    """
    if name == AUTO:
        params["candidates"] = [_for_confidence(key) for key in params.get("candidates") or _suitable()]
    return make_calibrator(_for_confidence(name), from_probs=True, **params)


def _suitable() -> list[str]:
    return [name for name, cls in CALIBRATORS.items() if cls.can_change_prediction]


def _for_confidence(name: str) -> str:
    if name == "isotonic-confidence":
        return "isotonic"
    if name in CALIBRATORS and name not in _suitable():
        raise ValueError(
            f"{name} cannot calibrate a confidence, because it never moves one across 1/2. It needs the probabilities "
            f"or logits of all classes. For a confidence, name one of {AUTO}, isotonic-confidence, "
            f"{', '.join(_suitable())}."
        )
    return name


def describe() -> list[Description]:
    """List every calibrator, with the first line of its docstring and what it can change."""
    return [
        Description(
            name,
            (cls.__doc__ or "").strip().splitlines()[0],
            cls.can_change_prediction,
            cls.can_fall_below_chance,
        )
        for name, cls in CALIBRATORS.items()
    ]
