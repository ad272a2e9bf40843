"""Experiments of the second paper: γ-Net, SECE and other methods on images, with the paper's tables and figures."""
