"""torch's global random generators: seeded or used inside a block, and restored after it.

The generators belong to the process. Threads that train at the same time take turns, so that each draws the numbers of
its own seed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_turns = threading.RLock()


def _renew() -> None:
    """Another thread may have held the lock when the process was forked; it does not exist in the new process."""
    global _turns
    _turns = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def generators_restored(like: Tensor) -> Iterator[None]:
    """Restore torch's global generators after the block: that of the CPU, and that of the device of ``like``.

    Other threads may use the generators inside the block, which can be a whole training.
    """
    fork = torch.random.fork_rng(devices=[like.device] if like.is_cuda else [])
    with _turns:
        fork.__enter__()
    try:
        yield
    finally:
        with _turns:
            fork.__exit__(None, None, None)


@contextmanager
def seeded_start(seed: int) -> Iterator[None]:
    """Layers that are built inside the block draw their parameters from ``seed``. torch's global state is restored."""
    with _turns, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def seeded_generators(seed: int, like: Tensor) -> Iterator[None]:
    """The generators of the CPU and of the device of ``like`` start from ``seed``, and are restored after the block."""
    if not like.is_cuda:
        with seeded_start(seed):
            yield
        return
    with generators_restored(like):  # without a turn: backward passes on a GPU run in threads of their own
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed every GPU as well
        with torch.cuda.device(like.device):
            torch.cuda.manual_seed(seed)
        yield
