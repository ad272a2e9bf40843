"""The items of a loader: inputs, labels and indices in any of the usual forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from calibrant.data.streams.batch import tensors_of

LABELS = ("labels", "label", "targets", "target", "y")
"""Names of the labels in a mapping, tried in this order."""


@dataclass(frozen=True)
class BatchFormat:
    """How the items of a loader give the inputs of a network.

    Items are ``(inputs, targets)``, ``(inputs, targets, index)``, ``((ids, mask), targets)``, ``(ids, mask, targets)``
    for a network that needs two inputs, or mappings with the inputs, the labels and possibly "index" by name.
    """

    labels: str | None = None
    """The name of the labels in a mapping; None: the first of ``LABELS``."""
    names: frozenset[str] | None = None
    """The entries of a mapping that are arguments of the network; others are left out. None: all tensors."""
    positions: tuple[str, ...] = ()
    """Names of the network's positional arguments, the necessary ones first. Without names, batches have one input."""
    needed: int = 1
    """The number of these arguments that the network needs."""

    def read(self, item: Any) -> tuple[Any, Any, Any]:
        """Inputs, targets and index (or None) of one item."""
        if isinstance(item, Mapping):
            return self._read_mapping(item)
        parts = tuple(item) if isinstance(item, list | tuple) else ()
        if len(parts) > 1 and isinstance(parts[0], list | tuple):
            parts = self.arguments(parts[0]), *parts[1:]
        elif len(parts) > 3 or (len(parts) == 3 and self.needed == 2):
            parts = self.named(parts[:-1]), parts[-1]
        if len(parts) not in (2, 3):
            raise ValueError(
                "A batch must be (inputs, targets), (inputs, targets, index), or a mapping with labels; "
                f"got {type(item).__name__}" + (f" of length {len(item)}." if hasattr(item, "__len__") else ".")
            )
        inputs, targets, index = (*parts, None)[:3]
        return inputs, targets, index

    def inputs(self, item: Any) -> Any:
        """The inputs of one item, with or without labels."""
        if isinstance(item, Mapping):
            if "inputs" in item:
                return item["inputs"]
            return self._selected(item, (*LABELS, "index")) or self._selected(item, ("index",))
        if not isinstance(item, list | tuple):
            return item
        if isinstance(item[0], list | tuple):
            return self.arguments(item[0])
        return self.named(item[: self.needed]) if 1 < self.needed <= len(item) else item[0]

    def arguments(self, inputs: Sequence[Any]) -> Any:
        """Several inputs as a mapping by name, or as one tuple if the network has a single argument."""
        return tuple(inputs) if len(self.positions) == 1 < len(inputs) else self.named(inputs)

    def named(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Several inputs as a mapping, by the names of the arguments that take them."""
        if len(inputs) > len(self.positions):
            names = ", ".join(self.positions)
            takes = f"takes {len(self.positions)}: {names}" if names else "does not name its arguments"
            raise ValueError(
                f"A batch holds {len(inputs)} inputs, but the network {takes}. Give batches (inputs, targets), with "
                "one input for each argument of the network's forward method."
            )
        return dict(zip(self.positions, inputs, strict=False))

    def _read_mapping(self, item: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        name = self.labels if self.labels is not None else next((usual for usual in LABELS if usual in item), None)
        if name is None or name not in item:
            looked = repr(name) if name is not None else " or ".join(map(repr, LABELS))
            raise ValueError(
                f"A batch that is a mapping must have its labels under {looked}; got {sorted(item)}. Set labels='…'."
            )
        inputs = item["inputs"] if "inputs" in item else self._selected(item, (name, "index"))
        if isinstance(inputs, dict) and not inputs:
            wanted = "" if self.names is None else f" for the network's arguments ({', '.join(sorted(self.names))})"
            raise ValueError(
                f"A batch that is a mapping must have tensors besides {name!r}{wanted}; got {sorted(item)}."
            )
        return inputs, item[name], item.get("index")

    def _selected(self, item: Mapping[str, Any], without: Sequence[str]) -> dict[str, Any]:
        """The tensors of a mapping that are arguments of the network.

        If none is, and the network may have one argument only, it takes the whole mapping.
        """
        rest = {k: v for k, v in item.items() if isinstance(v, Tensor) and k not in without}
        wanted = rest if self.names is None else {k: v for k, v in rest.items() if k in self.names}
        takes_mapping = bool(self.positions) and self.needed <= 1
        return wanted if wanted or not takes_mapping else rest


def check_batch(inputs: Any, targets: Any) -> None:
    """Raise an error for a single sample in place of a batch, and for nested tensors."""
    if isinstance(targets, int | str) or (isinstance(targets, Tensor) and targets.dim() == 0):
        raise ValueError(
            "A loader must yield batches; got a single sample, whose label has no dimension. Pass "
            "DataLoader(dataset, batch_size=…)."
        )
    if any(t.is_nested for t in tensors_of(inputs)):
        raise ValueError("Nested tensors are not supported. Pad the samples of a batch to one length, and pass a mask.")
