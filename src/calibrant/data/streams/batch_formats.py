"""The items of a loader: inputs, labels and indices in any of the usual forms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from calibrant.data.streams.batch import tensors_of

LABELS = ("labels", "label", "targets", "target", "y")
"""Names of the labels in a mapping, tried in this order."""


def by_name(item: Any, positions: Sequence[str], needed: int = 1) -> Any:
    """An item of a loader with several inputs as ``(mapping, targets, …)``; other items unchanged.

    ``((ids, mask), targets)`` names its inputs by ``positions``. So does ``(ids, mask, targets)`` where the network
    needs two inputs; otherwise a third entry is the index of the samples. A network with one argument gets the tuple
    ``(ids, mask)`` itself.
    """
    if not isinstance(item, list | tuple) or len(item) < 2:
        return item
    if isinstance(item[0], list | tuple):
        return (arguments(item[0], positions), *item[1:])
    inputs = item[:-1]
    if len(inputs) > 2 or len(inputs) == needed == 2:
        return named(inputs, positions), item[-1]
    return item


def arguments(inputs: Sequence[Any], positions: Sequence[str]) -> Any:
    """Several inputs as a mapping by name, or as one tuple if the network has a single argument."""
    return tuple(inputs) if len(positions) == 1 < len(inputs) else named(inputs, positions)


def named(inputs: Sequence[Any], positions: Sequence[str]) -> dict[str, Any]:
    """Several inputs as a mapping, by the names of the arguments that take them."""
    if len(inputs) > len(positions):
        takes = f"takes {len(positions)}: {', '.join(positions)}" if positions else "does not name its arguments"
        raise ValueError(
            f"A batch holds {len(inputs)} inputs, but the network {takes}. Give batches (inputs, targets), with one "
            "input for each argument of the network's forward method."
        )
    return dict(zip(positions, inputs, strict=False))


def unpack(
    item: Any, labels: str | None = None, names: Collection[str] | None = None, whole: bool = False
) -> tuple[Any, Any, Any]:
    """Inputs, targets and index (or None) of one item of a loader; ``names`` and ``whole`` as in :func:`selected`."""
    if isinstance(item, list | tuple) and len(item) in (2, 3):
        inputs, targets, index = (*item, None)[:3]
        return inputs, targets, index
    if not isinstance(item, Mapping):
        raise ValueError(
            "A batch must be (inputs, targets), (inputs, targets, index), or a mapping with labels; "
            f"got {type(item).__name__}" + (f" of length {len(item)}." if hasattr(item, "__len__") else ".")
        )
    name = labels if labels is not None else next((usual for usual in LABELS if usual in item), None)
    if name is None or name not in item:
        looked = repr(name) if name is not None else " or ".join(map(repr, LABELS))
        raise ValueError(
            f"A batch that is a mapping must have its labels under {looked}; got {sorted(item)}. Set labels='…'."
        )
    if "inputs" in item:
        return item["inputs"], item[name], item.get("index")
    rest = selected(item, (name, "index"), names, whole)
    if not rest:
        wanted = "" if names is None else f" for the network's arguments ({', '.join(sorted(names))})"
        raise ValueError(f"A batch that is a mapping must have tensors besides {name!r}{wanted}; got {sorted(item)}.")
    return rest, item[name], item.get("index")


def selected(
    item: Mapping[str, Any], without: Collection[str], names: Collection[str] | None, whole: bool = False
) -> dict[str, Any]:
    """The tensors of a mapping that are arguments of the network: those with one of these ``names``.

    With ``whole``, a mapping without such names is the network's one argument, and all its tensors are kept.
    """
    rest = {k: v for k, v in item.items() if isinstance(v, Tensor) and k not in without}
    wanted = rest if names is None else {k: v for k, v in rest.items() if k in names}
    return wanted if wanted or not whole else rest


def takes_mapping(positions: Sequence[str], needed: int) -> bool:
    """Whether a network with these positional arguments may take a whole mapping as its one argument."""
    return len(positions) > 0 and needed <= 1


def check_batch(inputs: Any, targets: Any) -> None:
    """Raise an error for a single sample in place of a batch, and for nested tensors."""
    if isinstance(targets, int | str) or (isinstance(targets, Tensor) and targets.dim() == 0):
        raise ValueError(
            "A loader must yield batches; got a single sample, whose label has no dimension. Pass "
            "DataLoader(dataset, batch_size=…)."
        )
    if any(t.is_nested for t in tensors_of(inputs)):
        raise ValueError("Nested tensors are not supported. Pad the samples of a batch to one length, and pass a mask.")
