"""Processes for experiments: sets of one shape side by side on a GPU, and scikit-learn's methods on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

from calibrant.experiments.records import prepare

Outcome = TypeVar("Outcome")


APART = frozenset({"instance-weights"})
"""Methods that keep the processor busy, with dropout masks, and let a GPU wait."""


def in_parts(
    run: Callable[..., Outcome],
    sets: Sequence[str],
    *,
    device: torch.device,
    methods: Sequence[str] | None = None,
    **arguments: Any,
) -> list[Outcome]:
    """Call ``run(sets=, device=, **arguments)`` for each part of the sets; what it returned, part by part.

    On a GPU a part is the sets of one shape, which no population mixes with others, and each part has a process:
    beginning a population is Python's work, during which the GPU would wait. The largest part has this process, which
    need not be started. Elsewhere there is one part. ``run`` must be a function of a module. Where ``methods`` are
    given, it is called with some of them too: those ``APART`` have processes of their own.
    """
    if not sets:
        raise ValueError("there must be at least one set.")
    shapes, families = [tuple(sets)], [list(methods or ())]
    if device.type == "cuda":
        shapes = sorted(by_shape(sets), key=len, reverse=True)
        kinds = ([m for m in families[0] if (m in APART) == apart] for apart in (False, True))
        families = [kind for kind in kinds if kind] or [[]]
    calls = [
        {"sets": group, "device": device, **arguments} | ({"methods": family} if methods is not None else {})
        for family in families
        for group in shapes
    ]
    own, *others = calls
    with process_pool(len(others)) as pool:
        waiting = [pool.submit(run, **call) for call in others]
        here = run(**own)
        return [here, *(part.result() for part in waiting)]


def by_shape(sets: Sequence[str]) -> list[tuple[str, ...]]:
    """Sets whose networks may train as one population, together."""
    groups: dict[Any, list[str]] = {}
    for name in sets:
        groups.setdefault(prepare(name, 0).task.shape, []).append(name)
    return [tuple(group) for group in groups.values()]


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """So many processes beside this one, each with one thread; none are started before there is work for them.

    What has not begun by the end is dropped, and nobody waits for the processes to leave: a GPU's take seconds.
    """
    # Not forked: a process that has used a GPU cannot be.
    pool = ProcessPoolExecutor(max(1, processes), mp_context=get_context("spawn"), initializer=_one_thread)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _one_thread() -> None:
    """Each process has one core: threads of linear algebra would fight for them."""
    threadpool_limits(1)
    torch.set_num_threads(1)
