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


def make_calibrator(name: str, **params: Any) -> Calibrator:
    """Make a calibrator by its name in the table: ``make_calibrator("vector", l2=0.1)``; "auto" chooses the best."""
    if name == AUTO:
        from calibrant.posthoc.auto import Auto  # imported here because it depends on this table

        return Auto(**params)
    if name not in CALIBRATORS:
        raise ValueError(f"name must be one of {AUTO}, {', '.join(CALIBRATORS)}; got {name!r}.")
    return CALIBRATORS[name](**params)


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
