"""How much memory something holds: what was allocated while it was made, and is still there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


def live_bytes(make: Callable[[], object], device: torch.device) -> int:
    """Bytes that ``make()`` allocates on ``device`` and that its result keeps alive."""
    if device.type == "cuda":
        make()  # libraries allocate workspaces of their own in the first call
        before = torch.cuda.memory_allocated(device)
        kept = make()
        held = torch.cuda.memory_allocated(device) - before
    else:
        with Allocations() as seen:
            kept = make()
        held = seen.alive()
    del kept
    return held


def tensor_bytes(tree: Any, beside: Any = ()) -> int:
    """Bytes of the tensors in a nested structure; shared storage, and that of the tensors in ``beside``, counts not."""
    known = {ref.cdata for ref, _ in _storages(pytree.tree_leaves(beside))}
    return sum(
        {ref.cdata: size for ref, size in _storages(pytree.tree_leaves(tree)) if ref.cdata not in known}.values()
    )


class Allocations(TorchDispatchMode):
    """Remembers the storage of every tensor that is made inside, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {ref.cdata for ref, _ in _storages(pytree.tree_leaves((args, kwargs)))}
        output = func(*args, **kwargs)
        for ref, size in _storages(pytree.tree_leaves(output)):
            if ref.cdata not in given:  # a view, or a result in place, is no allocation
                self.seen[ref.cdata] = ref, size
        return output

    def alive(self) -> int:
        """Bytes of what has not been freed."""
        return sum(size for ref, size in self.seen.values() if not ref.expired())


def _storages(leaves: Iterable[Any]) -> list[tuple[StorageWeakRef, int]]:
    storages = [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, Tensor)]
    return [(StorageWeakRef(storage), storage.nbytes()) for storage in storages]
