"""Experiment with flipped training labels (`studies bench noise`): accuracy, and how well wrong labels are found."""

from studies.label_noise.study import run

__all__ = ["run"]
