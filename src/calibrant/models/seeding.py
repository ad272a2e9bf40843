"""Starting parameters as a pure function of a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_start(seed: int) -> Iterator[None]:
    """Layers that are built inside the block draw their parameters from ``seed``. torch's global state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
