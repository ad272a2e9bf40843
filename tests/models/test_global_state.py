"""Tests of torch's global state: seeded blocks, and threads for independent work."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch

from calibrant.models.functional.global_state import generators_restored, seeded_generators, seeded_start, share_out

LIKE = torch.zeros(1)
BLOCKS = {"start": seeded_start, "generators": lambda seed: seeded_generators(seed, LIKE)}


@pytest.mark.parametrize("kind", BLOCKS)
def test_threads_draw_the_numbers_of_their_own_seeds(kind):
    meeting = threading.Barrier(2)

    def draw(seed):
        with BLOCKS[kind](seed):
            first = torch.rand(3)
            with suppress(threading.BrokenBarrierError):
                meeting.wait(1)  # both threads would meet here if they did not take turns
            return torch.cat([first, torch.rand(3)])

    _first_number(0)  # the first call imports modules, and could outlast the wait
    before = torch.get_rng_state()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(draw, range(2)))
    for seed, numbers in enumerate(found):
        assert torch.equal(numbers, torch.rand(6, generator=torch.Generator().manual_seed(seed)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_long_block_does_not_stop_other_threads():
    with generators_restored(LIKE), ThreadPoolExecutor(1) as pool:
        assert pool.submit(_first_number, 3).result(timeout=30) == _first_number(3)


def test_blocks_can_be_nested():
    with seeded_start(1), seeded_generators(2, LIKE):
        inner = torch.rand(3)
    assert torch.equal(inner, torch.rand(3, generator=torch.Generator().manual_seed(2)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_does_not_wait_for_former_threads():
    inside, done = threading.Event(), threading.Event()

    def hold():
        with seeded_start(0):
            inside.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)
    child = os.fork()
    if child == 0:
        worker = threading.Thread(target=_first_number, args=(0,), daemon=True)
        worker.start()
        worker.join(20)
        os._exit(worker.is_alive())
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert status == 0


def _first_number(seed):
    with seeded_start(seed):
        return torch.rand(1).item()


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_every_part_is_taken_once_by_single_threads():
    taken, started, threads = [], threading.Barrier(3), set()

    def work(parts):
        started.wait(timeout=60)  # all three threads run at the same time
        threads.add((threading.get_ident(), torch.get_num_threads()))
        taken.extend(parts)

    share_out(work, range(100))
    assert sorted(taken) == list(range(100))
    assert len(threads) == 3
    assert {number for _, number in threads} == {1}
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("count", [0, 1, 5])
def test_one_thread_or_one_part_needs_no_other_threads(count):
    calls = []
    if count > 1:
        torch.set_num_threads(1)
    share_out(lambda parts: calls.append((threading.get_ident(), list(parts))), range(count))
    assert calls == [(threading.get_ident(), list(range(count)))]


@pytest.mark.usefixtures("three_threads")
def test_errors_are_raised_and_the_number_is_restored():
    def work(parts):
        raise ValueError(f"part {parts[0]}")

    with pytest.raises(ValueError, match="part"):
        share_out(work, range(10))
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_callers_together_take_turns_and_restore_the_number():
    numbers = []

    def work(parts):
        numbers.append(torch.get_num_threads())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: share_out(work, range(6)), range(8)))
    assert set(numbers) == {1}
    assert torch.get_num_threads() == 3
