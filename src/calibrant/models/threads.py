"""Python threads that run torch's operations alone, for work on independent parts.

torch divides each operation among threads, which then wait for each other. If operations are short, or if other
programs use the same cores, waiting takes longer than the work. Threads with parts of their own wait only once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Part = TypeVar("Part")

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


def share_out(work: Callable[[Iterator[Part]], None], parts: Iterable[Part]) -> None:
    """Call ``work`` in several threads, each with an iterator over parts that no other thread has taken.

    A part must not depend on others. With one thread, ``work`` is called once with all parts.
    """
    left = deque(parts)
    count = min(_threads(), len(left))
    if count < 2:
        work(iter(left))
        return

    def untaken() -> Iterator[Part]:
        while left:
            try:
                part = left.popleft()
            except IndexError:  # another thread took the last one
                return
            yield part

    with single_operations(), ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(lambda: work(untaken())) for _ in range(count)]:
            done.result()
