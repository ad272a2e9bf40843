"""Tests of any module as a pure function: it gives the module's numbers and does not change the module."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from calibrant.models import FunctionalModule
from tests.models.module_cases import MODULES, Tied, assert_buffers, frozen_layer, make, mlp

every_module = pytest.mark.parametrize("name", MODULES)


@every_module
def test_outputs_gradients_and_buffers_are_the_modules_own(name):
    """Three passes in training mode, then one in evaluation mode; after each, buffers as torch has them."""
    model, inputs = make(name)
    view = FunctionalModule(model)
    params, buffers = view.initial().requires_grad_(), view.initial_buffers()
    for x in inputs[:3]:
        net = view.bind(params, buffers, train=True)
        output, expected = net(x), model(x)
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
        (grad,) = torch.autograd.grad(output.square().sum(), params)
        trainable = [p for p in model.parameters() if p.requires_grad]
        theirs = torch.autograd.grad(expected.square().sum(), trainable)
        torch.testing.assert_close(grad, torch.cat([g.flatten() for g in theirs]), rtol=1e-9, atol=1e-9)
        buffers = {k: b.detach() for k, b in net.buffers.items()}
        assert_buffers(buffers, model)
    model.eval()
    net = view.bind(params, buffers, train=False)
    for _ in range(2):
        torch.testing.assert_close(net(inputs[3]), model(inputs[3]), rtol=1e-12, atol=1e-12)
    assert_buffers(net.buffers, model)
    with torch.no_grad():  # torch takes other kernels here for attention
        torch.testing.assert_close(net(inputs[3]), model(inputs[3]), rtol=1e-12, atol=1e-12)


@every_module
def test_the_users_module_is_never_touched(name):
    model, inputs = make(name)
    next(model.children(), model).eval()
    before = {k: t.clone() for k, t in model.state_dict().items()}
    kinds = [(type(m), m.training) for m in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    view = FunctionalModule(model)
    params = view.initial().requires_grad_()
    for train in (True, False, True):
        view.bind(params, view.initial_buffers(), train=train)(inputs[0]).sum().backward()
    assert all(torch.equal(before[k], t) for k, t in model.state_dict().items())
    assert kinds == [(type(m), m.training) for m in model.modules()]
    assert flags == [p.requires_grad for p in model.parameters()]
    assert all(p.grad is None for p in model.parameters())


@every_module
def test_calls_do_not_leak_into_the_view(name):
    """Equal parameters give equal outputs after any other calls, and the given buffers do not change."""
    model, inputs = make(name)
    view = FunctionalModule(model)
    params, buffers = view.initial(), view.initial_buffers()
    given = {k: b.clone() for k, b in buffers.items()}
    first = view.bind(params, buffers)(inputs[0])
    view.bind(params + 1, buffers)(inputs[1])
    view.bind(params, buffers, train=False)(inputs[1])
    assert torch.equal(view.bind(params, buffers)(inputs[0]), first)
    assert all(torch.equal(buffers[k], given[k]) for k in given)
    assert torch.equal(view.initial(), params)


@every_module
def test_export_round_trip(name):
    model, inputs = make(name)
    view = FunctionalModule(model)
    params = view.initial() + 0.1 * torch.randn(view.size, dtype=torch.float64)
    net = view.bind(params, view.initial_buffers(), train=True)
    net(inputs[0])
    into = copy.deepcopy(model)
    assert view.export(params, net.buffers, into) is into
    assert torch.equal(FunctionalModule(into).initial(), params)
    torch.testing.assert_close(
        into.eval()(inputs[1]), view.bind(params, net.buffers, train=False)(inputs[1]), rtol=1e-12, atol=1e-12
    )


def test_export_into_another_kind_of_module_is_an_error():
    view = FunctionalModule(mlp())
    with pytest.raises(ValueError, match=r"got one without 0\.bias, 0\.weight, 2\.bias, 2\.weight"):
        view.export(view.initial(), {}, nn.Linear(4, 3))


@every_module
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_flatten_and_unflatten_are_inverse(name, lead):
    view = FunctionalModule(make(name)[0])
    params = torch.randn(*lead, view.size, dtype=torch.float64)
    named = view.unflatten(params)
    assert [t.shape for t in named.values()] == [lead + s for s in view.shapes]
    assert torch.equal(view.flatten(named), params)


def test_frozen_parameters_are_not_counted_and_tied_ones_once():
    assert FunctionalModule(frozen_layer()).names == ["2.weight", "2.bias"]
    assert FunctionalModule(Tied()).size == 4 * 4 + 4
    model = mlp().requires_grad_(False)
    view = FunctionalModule(model)
    assert view.size == 0
    x = torch.randn(2, 4)
    assert torch.equal(view.bind(view.initial(), {})(x), model(x))


def test_later_changes_to_the_module_are_not_seen():
    model, x = mlp(), torch.randn(3, 4)
    view = FunctionalModule(model)
    before = view.bind(view.initial(), {})(x)
    with torch.no_grad():
        model[0].weight.zero_()
    assert torch.equal(view.bind(view.initial(), {})(x), before)


def test_mixed_dtypes_are_an_error():
    model = mlp()
    model[2].double()
    with pytest.raises(ValueError, match=r"several dtypes .*Convert the module"):
        FunctionalModule(model)
    model[2].requires_grad_(False)
    assert FunctionalModule(model).initial().dtype == torch.float32


def test_autocast_lowers_the_forward_pass_only():
    view, x = FunctionalModule(mlp()), torch.randn(5, 4)
    low = view.bind(view.initial(), {}, autocast=torch.bfloat16)(x)
    full = view.bind(view.initial(), {})(x)
    assert low.dtype == torch.float32
    assert 0 < (low - full).abs().max() < 0.05


def test_any_function_of_the_module_can_be_run():
    view = FunctionalModule(mlp())
    params = torch.randn(view.size)
    found = view.run(params, lambda module, scale: scale * module[2].bias, 2.0)
    assert torch.equal(found, 2 * view.unflatten(params)["2.bias"])
