"""Norm layers as pure functions: running statistics, precision and layers of the user."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.models import FunctionalModule
from tests.models.module_cases import SharedNorm, assert_buffers, make


def test_running_statistics_carry_gradient():
    """Against finite differences: a loss in evaluation mode depends on earlier parameters through the statistics."""
    model, inputs = make("conv and batch norm")
    view = FunctionalModule(model)
    assert view.differentiable_buffers == ["1.running_mean", "1.running_var", "5.running_mean", "5.running_var"]
    other, direction = view.initial() + 0.1, torch.randn(view.size, dtype=torch.float64)

    def loss(params):
        net = view.bind(params, view.initial_buffers(), train=True)
        net(inputs[0])
        return view.bind(other, net.buffers, train=False)(inputs[1]).square().sum()

    params = view.initial().requires_grad_()
    (grad,) = torch.autograd.grad(loss(params), params)
    with torch.no_grad():
        difference = (loss(params + 1e-6 * direction) - loss(params - 1e-6 * direction)) / 2e-6
    assert float(grad @ direction) == pytest.approx(float(difference), rel=1e-6)


def test_a_batch_norm_left_in_eval_is_a_constant():
    model, inputs = make("batch norm left in eval")
    view = FunctionalModule(model)
    net = view.bind(view.initial(), view.initial_buffers(), train=True)
    net(inputs[0])
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(net.buffers[f"1.{name}"], view.initial_buffers()[f"1.{name}"])
    assert net.buffers["5.num_batches_tracked"] == 1


def test_a_failed_pass_leaves_no_statistics_behind():
    model = SharedNorm().double()
    view = FunctionalModule(model)
    params, buffers = view.initial(), view.initial_buffers()
    x = torch.randn(6, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        view.bind(torch.cat([params[:8], params[8:]]).float(), buffers)(x)
    net = view.bind(params, buffers)
    net(x)
    model(x)
    assert_buffers(net.buffers, model)


class OwnForward(nn.BatchNorm1d):
    def forward(self, input):
        return F.relu(super().forward(input))


def test_a_batch_norm_with_its_own_forward_keeps_it():
    model = nn.Sequential(nn.Linear(4, 4), OwnForward(4)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    view = FunctionalModule(model)
    net = view.bind(view.initial(), view.initial_buffers())
    torch.testing.assert_close(net(x), model(x), rtol=1e-12, atol=1e-12)
    assert_buffers(net.buffers, model)
    assert view.differentiable_buffers == []


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(5, 3, 7), (3, 7)])
def test_instance_norm_is_that_of_torch(shape, training, affine, momentum):
    torch.manual_seed(0)
    model = nn.InstanceNorm1d(3, affine=affine, momentum=momentum, track_running_stats=True).double()
    model.running_mean.copy_(torch.randn(3))
    model.running_var.copy_(torch.rand(3) + 0.5)
    view = FunctionalModule(model)
    net, x = view.bind(view.initial(), view.initial_buffers(), train=training), 2 + torch.randn(shape).double()
    model.train(training)
    for _ in range(3):
        torch.testing.assert_close(net(x), model(x), rtol=1e-12, atol=1e-12)
    assert_buffers(net.buffers, model)
    assert view.differentiable_buffers == ["running_mean", "running_var"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_running_statistics_keep_their_precision_under_autocast(dtype):
    """Statistics near 1 would move in steps of 1/128 in bfloat16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    view = FunctionalModule(model)
    x = torch.randn(512, 4)
    net = view.bind(view.initial(), view.initial_buffers(), autocast=dtype)
    net(x)
    with torch.autocast("cpu", dtype=dtype):
        seen = model[0](x)
    assert seen.dtype == dtype
    torch.testing.assert_close(net.buffers["1.running_mean"], 0.1 * seen.float().mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(net.buffers["1.running_var"], 0.9 + 0.1 * seen.float().var(0), rtol=1e-5, atol=1e-6)
    frozen = view.bind(view.initial(), net.buffers, train=False, autocast=dtype)(x)
    exact = (seen.float() - net.buffers["1.running_mean"]) * (net.buffers["1.running_var"] + 1e-5).rsqrt()
    torch.testing.assert_close(frozen, exact.to(dtype).float(), rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_synchronised_batch_norm_is_batch_norm_in_one_process():
    x, outputs = torch.randn(8, 2), []
    for kind in (nn.SyncBatchNorm, nn.BatchNorm1d):
        view = FunctionalModule(kind(2))
        net = view.bind(view.initial(), view.initial_buffers())
        outputs.append((net(x), net.buffers))
    torch.testing.assert_close(*outputs)
