"""Models, and any module as a pure function."""

from calibrant.models.functional import FunctionalModule, Network

__all__ = ["FunctionalModule", "Network"]
