"""Training methods as values; ``fit_all`` trains any list of methods and tasks.

``METHODS`` has the first paper's methods and baselines by name. :data:`calibrant.methods.names.ALL_METHODS` also has
the second paper's methods for image networks; :func:`calibrant.fit` knows all of these names.
"""

from calibrant.methods.adapter import Group, Outcome, Solving
from calibrant.methods.base import Method
from calibrant.methods.baselines import Calibrated, Ensemble
from calibrant.methods.bo4sc import BO4SC
from calibrant.methods.cross_fitted import CrossFitted
from calibrant.methods.default import default_method
from calibrant.methods.fitted import Fitted, Mixture, Recalibrated
from calibrant.methods.instance_weights import InstanceWeights
from calibrant.methods.jobs import Job, fit_all
from calibrant.methods.learned import suspicion
from calibrant.methods.part import Part
from calibrant.methods.registry import METHODS, Entry
from calibrant.methods.self_calibrated import SelfCalibrated
from calibrant.methods.standard import Standard
from calibrant.methods.task import Task
from calibrant.methods.trained import Trained

__all__ = [
    "BO4SC",
    "METHODS",
    "Calibrated",
    "CrossFitted",
    "Ensemble",
    "Entry",
    "Fitted",
    "Group",
    "InstanceWeights",
    "Job",
    "Method",
    "Mixture",
    "Outcome",
    "Part",
    "Recalibrated",
    "SelfCalibrated",
    "Solving",
    "Standard",
    "Task",
    "Trained",
    "default_method",
    "fit_all",
    "suspicion",
]
