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
from collections import deque
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

_lock = threading.Lock()
_callers, _usual = 0, 1


@contextmanager
def single_operations() -> Iterator[None]:
    """Run operations of new threads on one thread each.

    torch has one number of threads for the process, which is restored at the end. If several threads use this function
    at the same time, all of them restore the number that the first one found.
    """
    global _callers, _usual
    with _lock:
        usual = _usual = _threads()
        _callers += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _callers -= 1
            torch.set_num_threads(usual)


def _threads() -> int:
    """The number of threads that operations usually have. A thread that starts while the number is 1 would keep it."""
    return _usual if _callers else torch.get_num_threads()


def share_out(work: Callable[[Iterator[Piece]], None], parts: Iterable[Piece]) -> None:
    """Call ``work`` in several threads, each with an iterator over parts that no other thread has taken.

    A part must not depend on others. With one thread, ``work`` is called once with all parts.
    """
    left = deque(parts)
    count = min(_threads(), len(left))
    if count < 2:
        work(iter(left))
        return

    def untaken() -> Iterator[Piece]:
        while left:
            try:
                part = left.popleft()
            except IndexError:  # another thread took the last one
                return
            yield part

    with single_operations(), ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(lambda: work(untaken())) for _ in range(count)]:
            done.result()
