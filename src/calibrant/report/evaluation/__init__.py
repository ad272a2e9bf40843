"""Evaluate the predictions of any model: a verdict in words, numbers with their noise, and a report page.

>>> import calibrant
>>> result = calibrant.evaluate([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.3, 0.7]], ["no", "yes", "no", "yes"])
>>> result.verdict.kind
'undecided'
"""

from calibrant.report.evaluation.evaluate import evaluate
from calibrant.report.evaluation.numbers import Measure, ModelNumbers
from calibrant.report.evaluation.result import Evaluation
from calibrant.report.evaluation.verdict import CalibrationVerdict

__all__ = ["CalibrationVerdict", "Evaluation", "Measure", "ModelNumbers", "evaluate"]
