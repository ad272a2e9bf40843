"""The memory that an object holds: bytes that were allocated for it and are still in use."""

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
        make()  # libraries allocate their workspaces in the first call
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
    """The bytes of the tensors in a nested structure.

    Shared storage counts once, and storage of the tensors in ``beside`` does not count.
    """
    known = {ref.cdata for ref, _ in _storages(pytree.tree_leaves(beside))}
    return sum(
        {ref.cdata: size for ref, size in _storages(pytree.tree_leaves(tree)) if ref.cdata not in known}.values()
    )


class Allocations(TorchDispatchMode):
    """Records the storage of every tensor that is made inside the block, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {ref.cdata for ref, _ in _storages(pytree.tree_leaves((args, kwargs)))}
        output = func(*args, **kwargs)
        for ref, size in _storages(pytree.tree_leaves(output)):
            if ref.cdata not in given:  # a view or an operation in place allocates nothing
                self.seen[ref.cdata] = ref, size
        return output

    def alive(self) -> int:
        """The bytes that have not been freed."""
        return sum(size for ref, size in self.seen.values() if not ref.expired())


def _storages(leaves: Iterable[Any]) -> list[tuple[StorageWeakRef, int]]:
    storages = [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, Tensor)]
    return [(StorageWeakRef(storage), storage.nbytes()) for storage in storages]
