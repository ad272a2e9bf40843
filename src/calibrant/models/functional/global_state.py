"""torch's global state: random generators that are seeded and restored, and threads for independent work.

torch's global random generators: seeded or used inside a block, and restored after it. The generators belong to the
process. Threads that train at the same time take turns, so that each draws the numbers of its own seed.

Python threads that run torch's operations alone, for work on independent parts.

torch divides each operation among threads, which then wait for each other. If operations are short, or if other
programs use the same cores, waiting takes longer than the work. Threads with parts of their own wait only once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

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


Piece = TypeVar("Piece")
_sharing = threading.Lock()


def share_out(work: Callable[[Iterable[Piece]], None], parts: Iterable[Piece]) -> None:
    """Call ``work`` in several threads, each with some of the parts and with operations of one thread.

    A part must not depend on others. With one thread, ``work`` is called once with all parts. torch has one number of
    threads for the process, so callers that share out at the same time take turns.
    """
    pieces = list(parts)
    with _sharing:
        usual = torch.get_num_threads()
        count = min(usual, len(pieces))
        if count < 2:
            work(pieces)
            return
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(work, (pieces[k::count] for k in range(count))))
        finally:
            torch.set_num_threads(usual)
