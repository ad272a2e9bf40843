"""The five synthetic sets of the first paper, whose posterior is known, and wrong labels."""

from studies.sets.bac import bac, bac_level
from studies.sets.suite import FITTED_SETS, NOISE_FREE, SETS, SyntheticProblem, flip_labels, fresh, load_problem
from studies.sets.synthetic import Synthetic, blobs, spirals

__all__ = [
    "FITTED_SETS",
    "NOISE_FREE",
    "SETS",
    "Synthetic",
    "SyntheticProblem",
    "bac",
    "bac_level",
    "blobs",
    "flip_labels",
    "fresh",
    "load_problem",
    "spirals",
]
