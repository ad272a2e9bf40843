"""Starting parameters that are a pure function of a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_start(seed: int) -> Iterator[None]:
    """Layers built inside draw their start from ``seed``; torch's global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
