"""torch's global random generators: seeded or used inside a block, and restored after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor


def generators_restored(like: Tensor) -> AbstractContextManager[None]:
    """Restore torch's global generators after the block: that of the CPU, and that of the device of ``like``."""
    return torch.random.fork_rng(devices=[like.device] if like.is_cuda else [])


@contextmanager
def seeded_start(seed: int) -> Iterator[None]:
    """Layers that are built inside the block draw their parameters from ``seed``. torch's global state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
