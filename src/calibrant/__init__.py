"""Calibrant: neural classifiers whose confidence can be believed."""

from calibrant._version import __version__

__all__ = ["__version__"]
