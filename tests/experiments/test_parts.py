"""Experiments in parts: the split by shape, one process for each on a GPU, and what comes back in order."""

import os

import pytest
import torch

from calibrant.data import SETS
from calibrant.experiments.parts import by_shape, in_parts


def tell(*, sets, device, word):
    if word in sets:
        raise RuntimeError("a part that failed")
    return sets, device.type, word, os.getpid(), torch.get_num_threads()


def test_sets_of_one_shape_are_a_part():
    assert by_shape(list(SETS)) == [("blobs-1.3", "blobs-1.7"), ("spirals-2.5", "spirals-3.5"), ("bac",)]


def test_on_a_processor_there_is_one_part_in_this_process():
    (found,) = in_parts(tell, ["bac", "blobs-1.3"], device=torch.device("cpu"), word="x")
    assert found[:4] == (("bac", "blobs-1.3"), "cpu", "x", os.getpid())


def test_on_a_gpu_every_part_has_a_process_the_largest_one_this():
    sets = ["bac", "blobs-1.3", "spirals-2.5", "spirals-3.5"]
    found = in_parts(tell, sets, device=torch.device("cuda"), word="x")
    assert [part[0] for part in found] == [("spirals-2.5", "spirals-3.5"), ("bac",), ("blobs-1.3",)]
    assert all(part[1:3] == ("cuda", "x") for part in found)
    own, first, second = (part[3] for part in found)
    assert own == os.getpid()
    assert own not in (first, second)
    assert found[1][4] == found[2][4] == 1


def test_the_error_of_a_part_is_raised_here():
    with pytest.raises(RuntimeError, match="a part that failed"):
        in_parts(tell, ["bac", "blobs-1.3"], device=torch.device("cuda"), word="bac")
    with pytest.raises(RuntimeError, match="a part that failed"):
        in_parts(tell, ["bac", "blobs-1.3"], device=torch.device("cuda"), word="blobs-1.3")


def name_methods(*, sets, device, methods):
    return sets, methods


def test_methods_that_busy_the_processor_have_parts_of_their_own_on_a_gpu():
    sets, methods = ["blobs-1.3", "bac"], ["standard", "instance-weights", "bo4sc"]
    found = in_parts(name_methods, sets, device=torch.device("cuda"), methods=methods)
    rest, apart = ["standard", "bo4sc"], ["instance-weights"]
    assert found == [(("blobs-1.3",), rest), (("bac",), rest), (("blobs-1.3",), apart), (("bac",), apart)]
    assert in_parts(name_methods, sets, device=torch.device("cpu"), methods=methods) == [(tuple(sets), methods)]
    assert in_parts(name_methods, ["bac"], device=torch.device("cuda"), methods=apart) == [(("bac",), apart)]
