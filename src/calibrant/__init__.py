"""Calibrant: neural classifiers whose confidence can be believed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant._version import __version__

if TYPE_CHECKING:
    from calibrant import bilevel, data, losses, metrics, models, plots, posthoc, report, selective

__all__ = ["__version__", "bilevel", "data", "losses", "metrics", "models", "plots", "posthoc", "report", "selective"]


def __getattr__(name: str) -> Any:
    """Load a room when it is first used (PEP 562): the command line answers without waiting for torch."""
    if name in __all__:
        return import_module(f"calibrant.{name}")
    raise AttributeError(f"module 'calibrant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
