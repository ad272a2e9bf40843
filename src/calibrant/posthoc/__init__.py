"""Post-hoc calibrators: maps from a trained model's logits to probabilities that can be believed.

Each calibrator is a scikit-learn estimator: ``fit(logits, labels)`` on held-out data, then ``predict_proba(logits)``.
With ``from_probs=True`` it takes probabilities instead of logits.

========================== ==================================== ================== =================
name                       class                                can change the     confidence can
                                                                predicted class    fall below 1/C
========================== ==================================== ================== =================
temperature                `Temperature`                        no                 no
ensemble-temperature       `EnsembleTemperature`                no                 no
attended-temperature       `AttendedTemperature`                no                 no
vector                     `Vector`                             yes                no
matrix                     `Matrix`                             yes                no
structured-matrix          `StructuredMatrix`                   yes                no
dirichlet                  `Dirichlet`                          yes                no
platt                      `Platt`                              yes                no
beta                       `Beta`                               yes                no
isotonic                   `Isotonic`                           yes                no
isotonic-confidence        `IsotonicConfidence`                 no                 yes
order-preserving-isotonic  `OrderPreservingIsotonic`            no                 no
histogram                  `HistogramBinning`                   yes                no
neural                     `NeuralCalibrator`                   yes                no
========================== ==================================== ================== =================

`Auto` compares all of them by cross-validation and chooses one, or keeps the raw scores if none is clearly better.
`CALIBRATORS` holds this table, and `make_calibrator` makes a calibrator by name. `confidence_calibrator` makes one for
a confidence and whether the prediction was right, without the other classes. `CalibratedModel` joins a calibrator to a
fitted scikit-learn classifier or a torch module. `save_calibrator` and `load_calibrator` use files without pickle.
"""

from calibrant.posthoc._base import Calibrator
from calibrant.posthoc.auto import CALIBRATORS, Auto
from calibrant.posthoc.binning import HistogramBinning
from calibrant.posthoc.isotonic import Isotonic, IsotonicConfidence, OrderPreservingIsotonic
from calibrant.posthoc.matrix import Dirichlet, Matrix, StructuredMatrix, Vector
from calibrant.posthoc.neural import NeuralCalibrator
from calibrant.posthoc.persistence import load_calibrator, save_calibrator
from calibrant.posthoc.platt import Beta, Platt
from calibrant.posthoc.registry import confidence_calibrator, make_calibrator
from calibrant.posthoc.temperature import AttendedTemperature, EnsembleTemperature, Temperature
from calibrant.posthoc.wrapper import CalibratedModel

__all__ = [
    "CALIBRATORS",
    "AttendedTemperature",
    "Auto",
    "Beta",
    "CalibratedModel",
    "Calibrator",
    "Dirichlet",
    "EnsembleTemperature",
    "HistogramBinning",
    "Isotonic",
    "IsotonicConfidence",
    "Matrix",
    "NeuralCalibrator",
    "OrderPreservingIsotonic",
    "Platt",
    "StructuredMatrix",
    "Temperature",
    "Vector",
    "confidence_calibrator",
    "load_calibrator",
    "make_calibrator",
    "save_calibrator",
]
