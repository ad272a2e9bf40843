"""Flipped training labels and a clean validation part: who finds the wrong labels, and who stays right."""

from calibrant.experiments.label_noise.study import run

__all__ = ["run"]
