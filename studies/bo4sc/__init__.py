"""Experiments of the first paper (Sanguin et al. 2024): table and figures, grid search, and ablation."""

from studies.bo4sc.ablation import run as ablate
from studies.bo4sc.grid import run as sweep
from studies.bo4sc.study import reproduce

__all__ = ["ablate", "reproduce", "sweep"]
