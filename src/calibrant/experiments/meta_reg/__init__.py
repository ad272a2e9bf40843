"""The second paper: γ-Net, SECE and their rivals on images, with the paper's tables and figures beside our runs."""

from calibrant.experiments.meta_reg.search import sweep
from calibrant.experiments.meta_reg.study import ablate, reproduce

__all__ = ["ablate", "reproduce", "sweep"]
