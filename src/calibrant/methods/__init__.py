"""Training methods as values; ``fit_all`` trains any list of methods and tasks.

``METHODS`` has the first paper's methods and baselines by name. :data:`calibrant.methods.catalogue.ALL_METHODS` also
has the second paper's methods for image networks; :func:`calibrant.fit` knows all of these names.
"""

from calibrant.methods.bo4sc import BO4SC
from calibrant.methods.catalogue import METHODS, Entry
from calibrant.methods.core.jobs import Job, fit_all
from calibrant.methods.core.method import Method, SolveSettings, TrainedNetwork, TrainingGroup
from calibrant.methods.core.results import Fitted, Mixture, Recalibrated, suspicion
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task
from calibrant.methods.fit.defaults import default_method
from calibrant.methods.fit.trained import Trained
from calibrant.methods.self_calibrated import SelfCalibrated
from calibrant.methods.standard import Calibrated, CrossFitted, Ensemble, Standard

__all__ = [
    "BO4SC",
    "METHODS",
    "Calibrated",
    "CrossFitted",
    "Ensemble",
    "Entry",
    "Fitted",
    "Job",
    "Method",
    "Mixture",
    "Recalibrated",
    "Samples",
    "SelfCalibrated",
    "SolveSettings",
    "Standard",
    "Task",
    "Trained",
    "TrainedNetwork",
    "TrainingGroup",
    "default_method",
    "fit_all",
    "suspicion",
]
