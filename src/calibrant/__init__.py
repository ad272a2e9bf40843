"""Calibrant: neural classifiers whose confidence can be believed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant._version import __version__

if TYPE_CHECKING:
    from calibrant import (
        bilevel,
        data,
        estimators,
        export,
        integrations,
        losses,
        methods,
        metrics,
        models,
        plots,
        posthoc,
        report,
        selective,
        tables,
    )
    from calibrant.estimators import BO4SCClassifier, CrossCalibrated, SelfCalibratedClassifier
    from calibrant.methods import Trained
    from calibrant.methods.fit.calibrate import calibrate
    from calibrant.methods.fit.fit import fit
    from calibrant.report.evaluation import evaluate

__all__ = [
    "BO4SCClassifier",
    "CrossCalibrated",
    "SelfCalibratedClassifier",
    "Trained",
    "__version__",
    "bilevel",
    "calibrate",
    "data",
    "estimators",
    "evaluate",
    "export",
    "fit",
    "integrations",
    "losses",
    "methods",
    "metrics",
    "models",
    "plots",
    "posthoc",
    "report",
    "selective",
    "tables",
]

_HOMES = {
    "BO4SCClassifier": "calibrant.estimators",
    "CrossCalibrated": "calibrant.estimators",
    "SelfCalibratedClassifier": "calibrant.estimators",
    "Trained": "calibrant.methods",
    "calibrate": "calibrant.methods.fit.calibrate",
    "evaluate": "calibrant.report.evaluation",
    "fit": "calibrant.methods.fit.fit",
}
"""The modules of public names that are not subpackages."""


def __getattr__(name: str) -> Any:
    """Import a subpackage or a name on first use (PEP 562), so that the command line need not wait for torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"calibrant.{name}")
    raise AttributeError(f"module 'calibrant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
