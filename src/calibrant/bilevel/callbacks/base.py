"""The interface of callbacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calibrant._settings import shown
from calibrant.bilevel.run import Run


class Callback:
    """Base class of callbacks. Override any of its methods."""

    last = False
    """Whether it runs after all other callbacks, because it must see what they did."""

    def on_start(self, run: Run) -> None:
        """Called before the first outer step, also after resuming."""

    def on_step(self, run: Run) -> None:
        """Called after each outer step."""

    def on_end(self, run: Run) -> None:
        """Called after the last outer step, also when an error ended the run."""

    def state_dict(self) -> dict[str, Any]:
        """Values that a checkpoint saves: numbers, strings, lists and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the values of :meth:`state_dict`."""


def as_callbacks(given: Any) -> list[Callback]:
    """The callbacks of a run as a list; an error if they are something else."""
    found = list(given) if isinstance(given, Iterable) else [given]
    wrong = next((callback for callback in found if not hasattr(callback, "on_step")), None)
    if wrong is None and isinstance(given, Iterable):
        return found
    advice = "Pass [callback]." if wrong is None else "Derive a class from Callback, with on_step(run)."
    raise TypeError(f"callbacks must be a list of calibrant.bilevel.Callback; got {shown(given)}. {advice}")
