"""The first paper's experiments again (Sanguin et al. 2024): table and figures, its grid search, and an ablation."""

from calibrant.experiments.bo4sc.study import reproduce

__all__ = ["reproduce"]
