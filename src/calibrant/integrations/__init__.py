"""Calibration inside other tools: trackers, Lightning, Hugging Face, torchmetrics. Each is imported when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.integrations.huggingface import TrainerCalibration
    from calibrant.integrations.lightning import CalibrationCallback
    from calibrant.integrations.torchmetrics import ECE, ClasswiseECE, SmoothECE
    from calibrant.integrations.trackers import Tracker
    from calibrant.methods.fit.guards import calibration_scores

__all__ = [
    "ECE",
    "CalibrationCallback",
    "ClasswiseECE",
    "SmoothECE",
    "Tracker",
    "TrainerCalibration",
    "calibration_scores",
]

_HOMES = {
    "CalibrationCallback": "calibrant.integrations.lightning",
    "ClasswiseECE": "calibrant.integrations.torchmetrics",
    "ECE": "calibrant.integrations.torchmetrics",
    "SmoothECE": "calibrant.integrations.torchmetrics",
    "Tracker": "calibrant.integrations.trackers",
    "TrainerCalibration": "calibrant.integrations.huggingface",
    "calibration_scores": "calibrant.methods.fit.guards",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used (PEP 562): Lightning and torchmetrics need not be installed for the others."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'calibrant.integrations' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
