"""Parts are shared out among threads once each, and torch's number of threads is restored."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from calibrant.models.functional.global_state import share_out


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


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


@pytest.mark.parametrize("count", [0, 1, 5])
def test_one_thread_or_one_part_needs_no_other_threads(count):
    calls = []
    if count > 1:
        torch.set_num_threads(1)
    share_out(lambda parts: calls.append((threading.get_ident(), list(parts))), range(count))
    assert calls == [(threading.get_ident(), list(range(count)))]


def test_errors_are_raised_and_the_number_is_restored():
    def work(parts):
        raise ValueError(f"part {parts[0]}")

    with pytest.raises(ValueError, match="part"):
        share_out(work, range(10))
    assert torch.get_num_threads() == 3


def test_callers_together_take_turns_and_restore_the_number():
    numbers = []

    def work(parts):
        numbers.append(torch.get_num_threads())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: share_out(work, range(6)), range(8)))
    assert set(numbers) == {1}
    assert torch.get_num_threads() == 3
