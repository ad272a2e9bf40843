"""Experiments of the first paper (Sanguin et al. 2024): table and figures, grid search, and ablation."""
