"""How often rules and prediction sets from out-of-fold probabilities keep what they promise, on known posteriors."""

from calibrant.experiments.guarantees.study import run

__all__ = ["run"]
