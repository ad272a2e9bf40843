"""Methods: compositions of the engine's parts, as values. ``METHODS`` lists them; ``fit_all`` trains any mixture."""

from calibrant.methods.base import Job, Method, fit_all
from calibrant.methods.baselines import Calibrated, Ensemble, Recalibrated
from calibrant.methods.bo4sc import BO4SC, suspicion
from calibrant.methods.instance_weights import InstanceWeights
from calibrant.methods.registry import METHODS, Entry
from calibrant.methods.self_calibrated import SelfCalibrated
from calibrant.methods.standard import Standard
from calibrant.methods.task import Fitted, Mixture, Part, Task

__all__ = [
    "BO4SC",
    "METHODS",
    "Calibrated",
    "Ensemble",
    "Entry",
    "Fitted",
    "InstanceWeights",
    "Job",
    "Method",
    "Mixture",
    "Part",
    "Recalibrated",
    "SelfCalibrated",
    "Standard",
    "Task",
    "fit_all",
    "suspicion",
]
