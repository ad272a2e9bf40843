"""Calibrant: neural classifiers whose confidence can be believed."""

from calibrant import bilevel, data, losses, metrics, models, plots, posthoc, selective
from calibrant._version import __version__

__all__ = ["__version__", "bilevel", "data", "losses", "metrics", "models", "plots", "posthoc", "selective"]
