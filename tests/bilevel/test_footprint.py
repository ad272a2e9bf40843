"""Tests that the estimated memory of kept graphs is not below what they hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant.bilevel import Adam, Bilevel, Population, SampleWeights
from calibrant.bilevel.compiled import TracedDerivatives
from calibrant.bilevel.gradients.dynamics import Dynamics, Tape, step_bytes
from calibrant.bilevel.gradients.loss_derivatives import LossDerivatives

STEPS = 6


class Allocations(TorchDispatchMode):
    """Records the storage of every tensor that is made inside the block, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        argument_storages = {storage._cdata for storage in storages((args, kwargs))}
        output = func(*args, **(kwargs or {}))
        for storage in storages(output):
            if storage._cdata not in argument_storages:  # a view or an operation in place allocates nothing
                self.seen[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return output

    def alive(self) -> int:
        """The bytes that have not been freed."""
        return sum(size for ref, size in self.seen.values() if not ref.expired())


def storages(tree):
    return [leaf.untyped_storage() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def wide() -> nn.Module:
    """More parameters than activations, so states are larger than graphs."""
    return nn.Sequential(nn.Linear(12, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 3))


def convolutional() -> nn.Module:
    layers = [nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32, 3))


def made(model: nn.Module, samples: int = 40, batch_size: int | None = 8) -> Bilevel:
    x, y = torch.randn(samples, 12), torch.randint(0, 3, (samples,))
    outer = SampleWeights(samples, initial_weight=0.7)
    return Bilevel(model, outer, train=(x, y), val=(x, y), batch_size=batch_size)


PROBLEMS = {
    "mini-batches": lambda: made(wide()),
    "full batch": lambda: made(wide(), samples=300, batch_size=None),
    "convolutional": lambda: made(convolutional()),
    "population": lambda: (lambda first: Population([first, first.replicate(seed=1)]))(made(wide())),
}


@pytest.mark.parametrize("make", [LossDerivatives, TracedDerivatives])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_estimate_is_what_recorded_steps_hold(kind, make):
    torch.manual_seed(0)
    problem = PROBLEMS[kind]()
    phi = problem.initial_phi()
    dynamics = Dynamics(make(problem.inner, problem.view.differentiable_buffers), Adam(1e-2))
    start = dynamics.start(problem.initial_params(phi), problem.initial_buffers())
    one = step_bytes(dynamics, start, phi, problem.train_batch(0))
    tape = Tape(dynamics, problem.train_batch, phi, start, STEPS, "graphs")
    with Allocations() as seen:
        tape.forward()
    assert 0.5 * STEPS * one < seen.alive() <= STEPS * one
