"""Tests of SECE's kernel means: against loops, block by block, with every bandwidth, and their memory."""

import math
import resource

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant import metrics
from calibrant.losses import sece, soft_accuracy
from calibrant.losses.kernel_means import _PAIRS, kernel_means


def draw(n=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    points, values, weights = torch.rand(3, n, dtype=torch.float64, generator=generator).unbind()
    return points, values, torch.tensor(0.2, dtype=torch.float64), 0.1 + weights


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 9, 10, 1024])
@pytest.mark.parametrize("weighted", [False, True])
def test_means_are_those_of_loops_for_every_size_of_blocks(rows, weighted):
    points, values, width, weights = draw()
    weights = weights if weighted else torch.ones_like(weights)
    found = kernel_means(points, values, width.item(), weights if weighted else None, rows=rows)
    for i, z in enumerate(points.tolist()):
        kernel = [math.exp(-((z - other) ** 2) / (2 * 0.2**2)) for other in points.tolist()]
        shares = [k * w for k, w in zip(kernel, weights.tolist(), strict=True)]
        expected = sum(s * v for s, v in zip(shares, values.tolist(), strict=True)) / sum(shares)
        assert found[i].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rows", [4, 9])
def test_derivatives_in_all_arguments(rows):
    inputs = tuple(t.requires_grad_() for t in draw())
    function = lambda z, v, h, w: kernel_means(z, v, h, w, rows=rows)  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("batched", range(4), ids=["points", "values", "bandwidth", "weights"])
def test_members_may_differ_in_one_argument_only(batched):
    members = [draw(seed=k) for k in range(3)]
    shared = members[0]
    stacked = [torch.stack([m[batched] for m in members]) if k == batched else t for k, t in enumerate(shared)]
    if batched == 2:
        stacked[2] = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    slope = torch.func.grad(lambda z, v, h, w: kernel_means(z, v, h, w, rows=4).square().sum(), argnums=(0, 1, 2, 3))
    found = torch.func.vmap(slope, in_dims=tuple(0 if k == batched else None for k in range(4)))(*stacked)
    for m in range(3):
        own = [t[m] if k == batched else t for k, t in enumerate(stacked)]
        for together, alone in zip(found, slope(*own), strict=True):
            torch.testing.assert_close(together[m], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bandwidth", [1e-12, 1e-25, 1e-200, 5e-324])
@pytest.mark.parametrize("rows", [3, 1024])
def test_with_a_tiny_bandwidth_only_the_own_sample_counts(rows, bandwidth, dtype):
    """The paper's Dirac kernel: the mean of |π − z|, and for order 2 the Brier score of the confidence."""
    torch.manual_seed(0)
    logits, labels = torch.randn(8, 4, dtype=dtype, requires_grad=True), torch.arange(8) % 4
    probs = logits.softmax(1)
    right = {"soft": soft_accuracy(probs, labels), "hard": (probs.argmax(1) == labels).to(dtype)}
    for order, accuracy in ((1, "soft"), (2, "hard")):
        expected = (right[accuracy] - probs.amax(1)).abs().pow(order).mean()
        found = sece(logits, labels, bandwidth=bandwidth, order=order, accuracy=accuracy, rows=rows)
        torch.testing.assert_close(found, expected)
        slopes = [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (found, expected)]
        torch.testing.assert_close(slopes[0], slopes[1])


@pytest.mark.parametrize("rows", [3, 1024])
def test_with_a_huge_bandwidth_all_samples_count_alike(rows):
    points, values, _, weights = draw()
    for dtype in (torch.float32, torch.float64):
        own = points.to(dtype).requires_grad_()
        found = kernel_means(own, values.to(dtype), 1e300, weights.to(dtype), rows=rows)
        expected = (weights * values).sum() / weights.sum()
        torch.testing.assert_close(found, expected.to(dtype).expand(9))
        assert torch.equal(torch.autograd.grad(found.sum(), own)[0], torch.zeros_like(own))


def test_equal_points_share_their_values():
    points = torch.full((6,), 0.5, dtype=torch.float64, requires_grad=True)
    values = torch.arange(6, dtype=torch.float64)
    for rows in (2, 6):
        found = kernel_means(points, values, 1e-300, rows=rows)
        torch.testing.assert_close(found, torch.full_like(values, 2.5))
        assert torch.equal(torch.autograd.grad(found.sum(), points)[0], torch.zeros_like(points))


def test_a_far_sample_without_weight_does_no_harm():
    """Its own mean is 0/0, which must not reach the error or a slope."""
    logits = torch.tensor([[9.0, 0.0], [9.1, 0.0], [0.1, 0.0]], requires_grad=True)
    labels, weights = torch.tensor([0, 1, 0]), torch.tensor([1.0, 1.0, 0.0], requires_grad=True)
    for rows in (2, 1024):
        value = sece(logits, labels, sample_weight=weights, rows=rows)
        torch.testing.assert_close(value, sece(logits[:2], labels[:2], rows=rows))
        for slope in torch.autograd.grad(value, (logits, weights)):
            assert slope.isfinite().all()


class Largest(TorchDispatchMode):
    """The number of elements of the largest result of any operation."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numel = max(self.numel, result.numel())
        return result


def test_no_result_is_larger_than_a_block():
    n = 2000
    torch.manual_seed(0)
    logits, labels = torch.randn(n, 3, requires_grad=True), torch.randint(0, 3, (n,))
    with Largest() as seen:
        sece(logits, labels).backward()
    assert n < seen.numel <= _PAIRS < n**2 / 4


@pytest.mark.slow
def test_fifty_thousand_samples_need_little_memory():
    """All pairs would take 10 GB for each result. The metric uses another method for so many samples."""
    torch.manual_seed(0)
    logits, labels = torch.randn(50_000, 3, requires_grad=True), torch.randint(0, 3, (50_000,))
    sece(logits[:1500], labels[:1500]).backward()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    value = sece(logits, labels, accuracy="hard")
    value.backward()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 500
    assert logits.grad.isfinite().all()
    assert value.item() == pytest.approx(metrics.sece(logits.detach().softmax(1), labels), rel=1e-4)
