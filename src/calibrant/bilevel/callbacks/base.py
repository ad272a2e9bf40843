"""The interface of callbacks."""

from __future__ import annotations

from typing import Any

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
