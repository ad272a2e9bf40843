"""Old names of arguments, attributes and classes. They keep working for one version, with a DeprecationWarning."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def renamed_arguments(**names: str) -> Callable[[Decorated], Decorated]:
    """Decorate a function or class so that it still accepts old keyword names: ``lr="learning_rate"``."""

    def decorate(target: Any) -> Any:
        original = vars(target)["__init__"] if isinstance(target, type) else target

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise TypeError(f"{target.__name__} got both {new} and its old name {old}; give {new} only.")
                warn_renamed(f"the argument {old} of {target.__name__}", new, stacklevel=3)
                kwargs[new] = kwargs.pop(old)
            return original(*args, **kwargs)

        if not isinstance(target, type):
            return call
        target.__init__ = call  # type: ignore[misc]
        return target

    return decorate


def renamed_attribute(old: str, new: str) -> Any:
    """A read-only property ``old`` that returns the attribute ``new``."""

    def read(self: Any) -> Any:
        warn_renamed(f"{type(self).__name__}.{old}", new, stacklevel=3)
        return getattr(self, new)

    return property(read, doc=f"The old name of ``{new}``.")


def former_names(module: str, **names: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module whose public names changed: ``former_names(__name__, load="load_problem")``."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", names[name], stacklevel=3)
        return getattr(sys.modules[module], names[name])

    return find


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warn that ``old`` is now called ``new``."""
    text = f"{old[0].upper()}{old[1:]} is now called {new}; the old name will be removed in the next version."
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
