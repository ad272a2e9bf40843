"""Experiments of the second paper: γ-Net, SECE and other methods on images, with the paper's tables and figures."""

from studies.meta_reg.search import sweep
from studies.meta_reg.study import ablate, reproduce

__all__ = ["ablate", "reproduce", "sweep"]
