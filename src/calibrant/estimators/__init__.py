"""Scikit-learn classifiers with calibrated confidence, built on :mod:`calibrant.methods`."""

from calibrant.estimators.bo4sc import BO4SCClassifier
from calibrant.estimators.cross_calibrated import CrossCalibrated
from calibrant.estimators.persistence import load_classifier
from calibrant.estimators.self_calibrated import SelfCalibratedClassifier

__all__ = ["BO4SCClassifier", "CrossCalibrated", "SelfCalibratedClassifier", "load_classifier"]
