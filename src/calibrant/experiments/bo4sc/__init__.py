"""Experiments of the first paper (Sanguin et al. 2024): table and figures, grid search, and ablation."""

from calibrant.experiments.bo4sc.study import reproduce

__all__ = ["reproduce"]
