"""Models, and any module as a pure function."""

from calibrant.models.functional import FunctionalModule, Network
from calibrant.models.mlp import mlp

__all__ = ["FunctionalModule", "Network", "mlp"]
