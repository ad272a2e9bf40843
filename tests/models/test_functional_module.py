"""Tests of any module as a pure function: it gives the module's numbers and does not change the module."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.models import FunctionalModule

SAMPLES = 8


class Tied(nn.Module):
    """One matrix used as encoder and decoder, under two names."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.encode(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]


class SharedNorm(nn.Module):
    """One BatchNorm called twice in a pass: torch updates its statistics twice."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.norm(torch.tanh(self.linear(self.norm(x))))


class Twice(nn.Module):
    """One Dropout called twice in a pass."""

    def __init__(self, p=0.5):
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(p)

    def forward(self, x):
        return self.drop(self.linear(self.drop(x)))


def convolutional(**norm):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **norm), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3)
    )


def frozen_norm():
    model = convolutional()
    model[1].eval()
    return model


def frozen_layer():
    model = mlp()
    model[0].requires_grad_(False)
    return model


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


IMAGE, ROW, SEQUENCE = (SAMPLES, 3, 4, 4), (SAMPLES, 4), (SAMPLES, 6, 4)
# Every kind of module is a row: how it is made and the shape of its inputs. None draws random numbers.
MODULES = {
    "mlp": (mlp, ROW),
    "conv and batch norm": (convolutional, IMAGE),
    "batch norm, averaging all": (lambda: convolutional(momentum=None), IMAGE),
    "batch norm without scale": (lambda: convolutional(affine=False), IMAGE),
    "batch norm without statistics": (lambda: convolutional(track_running_stats=False), IMAGE),
    "batch norm left in eval": (frozen_norm, IMAGE),
    "batch norm called twice": (SharedNorm, ROW),
    "instance norm": (
        lambda: nn.Sequential(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.Flatten()),
        IMAGE,
    ),
    "spectral norm": (lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))), ROW),
    "tied weights": (Tied, ROW),
    "frozen layer": (frozen_layer, ROW),
    "lstm": (Recurrent, SEQUENCE),
    "attention": (Attention, SEQUENCE),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True),
        SEQUENCE,
    ),
    "a lone layer": (lambda: nn.BatchNorm1d(4), ROW),
    "dropout of nothing": (lambda: nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3)), ROW),
}
every_module = pytest.mark.parametrize("name", MODULES)


def _make(name):
    make, shape = MODULES[name]
    torch.manual_seed(0)
    model = make().double()
    return model, torch.randn(4, *shape, dtype=torch.float64)


def _assert_buffers(found, model):
    expected = dict(model.named_buffers())
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@every_module
def test_outputs_gradients_and_buffers_are_the_modules_own(name):
    """Three passes in training mode, then one in evaluation mode; after each, buffers as torch has them."""
    model, inputs = _make(name)
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
        _assert_buffers(buffers, model)
    model.eval()
    net = view.bind(params, buffers, train=False)
    for _ in range(2):
        torch.testing.assert_close(net(inputs[3]), model(inputs[3]), rtol=1e-12, atol=1e-12)
    _assert_buffers(net.buffers, model)
    with torch.no_grad():  # torch takes other kernels here for attention
        torch.testing.assert_close(net(inputs[3]), model(inputs[3]), rtol=1e-12, atol=1e-12)


@every_module
def test_the_users_module_is_never_touched(name):
    model, inputs = _make(name)
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
    model, inputs = _make(name)
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
    model, inputs = _make(name)
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
    with pytest.raises(ValueError, match=r"has no 0\.bias, 0\.weight, 2\.bias, 2\.weight"):
        view.export(view.initial(), {}, nn.Linear(4, 3))


@every_module
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_flatten_and_unflatten_are_inverse(name, lead):
    view = FunctionalModule(_make(name)[0])
    params = torch.randn(*lead, view.size, dtype=torch.float64)
    named = view.unflatten(params)
    assert [t.shape for t in named.values()] == [lead + s for s in view.shapes]
    assert torch.equal(view.flatten(named), params)


def test_unflatten_follows_the_names():
    model = mlp()
    view = FunctionalModule(model)
    assert all(torch.equal(t, dict(model.named_parameters())[k]) for k, t in view.unflatten(view.initial()).items())


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


def test_running_statistics_carry_gradient():
    """Against finite differences: a loss in evaluation mode depends on earlier parameters through the statistics."""
    model, inputs = _make("conv and batch norm")
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
    model, inputs = _make("batch norm left in eval")
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
    _assert_buffers(net.buffers, model)


class OwnForward(nn.BatchNorm1d):
    def forward(self, input):
        return F.relu(super().forward(input))


def test_a_batch_norm_with_its_own_forward_keeps_it():
    model = nn.Sequential(nn.Linear(4, 4), OwnForward(4)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    view = FunctionalModule(model)
    net = view.bind(view.initial(), view.initial_buffers())
    torch.testing.assert_close(net(x), model(x), rtol=1e-12, atol=1e-12)
    _assert_buffers(net.buffers, model)
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
    _assert_buffers(net.buffers, model)
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


def test_synchronised_batch_norm_is_refused():
    with pytest.raises(ValueError, match=r"SyncBatchNorm has no pure form\. Use BatchNorm"):
        FunctionalModule(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))


DROPOUTS = {
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 3)), ROW),
    "in place": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3, inplace=True)), ROW),
    "called twice": (Twice, ROW),
    "channels": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.5), nn.Flatten()), IMAGE),
    "a lone layer": (lambda: nn.Dropout(0.5), ROW),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.2, batch_first=True),
        SEQUENCE,
    ),
}
every_dropout = pytest.mark.parametrize("name", DROPOUTS)


def _drop(name):
    make, shape = DROPOUTS[name]
    torch.manual_seed(0)
    view = FunctionalModule(make().double())
    return view, torch.randn(shape, dtype=torch.float64)


@every_dropout
def test_noise_is_a_pure_function_of_the_seed(name):
    view, x = _drop(name)
    before = torch.get_rng_state()
    noise = view.draw_noise(7, x)
    view.draw_noise(8, x[:3])
    again, other = view.draw_noise(7, torch.zeros_like(x)), view.draw_noise(9, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert noise
    assert noise.keys() == again.keys()
    assert all(torch.equal(noise[k], again[k]) for k in noise)
    assert not all(torch.equal(noise[k], other[k]) for k in noise)
    fresh = _drop(name)[0].draw_noise(7, x)
    assert all(torch.equal(noise[k], fresh[k]) for k in noise)


@every_dropout
def test_masks_replay_exactly_and_do_nothing_in_evaluation(name):
    view, x = _drop(name)
    params, noise = view.initial(), view.draw_noise(7, x)

    def run(noise, **mode):
        torch.manual_seed(3)  # attention's own dropout is replayed by seeding
        return view.bind(params, {}, noise=noise, **mode)(x)

    first = run(noise)
    run(view.draw_noise(8, x))
    assert torch.equal(run(noise), first)
    assert not torch.equal(run(view.draw_noise(8, x)), first)
    assert torch.equal(run(noise, train=False), run({}, train=False))


def test_masks_of_two_calls_differ_and_come_in_order():
    view, x = _drop("called twice")
    noise = view.draw_noise(7, x)
    assert set(noise) == {"drop.mask0", "drop.mask1"}
    assert not torch.equal(noise["drop.mask0"], noise["drop.mask1"])
    linear = view.unflatten(view.initial())
    by_hand = F.linear(x * noise["drop.mask0"], linear["linear.weight"], linear["linear.bias"]) * noise["drop.mask1"]
    assert torch.equal(view.bind(view.initial(), {}, noise=noise)(x), by_hand)


@pytest.mark.parametrize(
    ("layer", "shape", "mask"),
    [
        (nn.Dropout, (5, 4), (5, 4)),
        (nn.Dropout1d, (5, 4, 3), (5, 4, 1)),
        (nn.Dropout1d, (4, 3), (4, 1)),
        (nn.Dropout2d, (5, 4, 3, 2), (5, 4, 1, 1)),
        (nn.Dropout2d, (5, 4, 3), (5, 4, 1)),
        (nn.Dropout3d, (5, 4, 3, 2, 2), (5, 4, 1, 1, 1)),
        (nn.Dropout3d, (4, 3, 2, 2), (4, 1, 1, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore:dropout2d:UserWarning")
def test_channels_are_dropped_whole_as_torch_does(layer, shape, mask):
    x = torch.ones(shape)
    noise = FunctionalModule(nn.Sequential(layer(0.5))).draw_noise(0, x)
    assert [m.shape for m in noise.values()] == [mask]
    theirs = layer(0.5)(x)  # constant along exactly the dimensions that share a draw
    assert torch.equal(theirs, theirs[tuple(slice(0, n) for n in mask)].expand(shape))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_masks_keep_the_scale_in_expectation(p):
    mask = FunctionalModule(nn.Sequential(nn.Dropout(p))).draw_noise(0, torch.ones(200, 500))["0.mask0"]
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    error = (p / (1 - p) / mask.numel()) ** 0.5  # standard deviation of the mean
    assert abs(float(mask.double().mean()) - 1) < 5 * error


def test_dropping_everything_gives_zeros():
    view = FunctionalModule(nn.Sequential(nn.Dropout(1.0)))
    x = torch.ones(3, 2)
    assert torch.equal(view.bind(view.initial(), {}, noise=view.draw_noise(0, x))(x), torch.zeros(3, 2))


def test_without_noise_dropout_draws_its_own():
    view, x = _drop("dropout")
    net = view.bind(view.initial(), {})
    assert not torch.equal(net(x), net(x))


def test_noise_follows_the_shapes_of_nested_inputs():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.drop = nn.Linear(4, 3), nn.Dropout(0.5)

        def forward(self, inputs):
            return self.drop(self.linear(inputs["x"]))

    view = FunctionalModule(Nested())
    shapes = [view.draw_noise(0, {"x": torch.ones(n, 4)})["drop.mask0"].shape for n in (5, 3)]
    assert shapes == [(5, 3), (3, 3)]


def test_a_model_given_in_evaluation_mode_evaluates():
    """Its dropout acts in training mode only, also after switching modes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).double().eval()
    x = torch.randn(8, 4, dtype=torch.float64)
    view = FunctionalModule(model)
    evaluate = view.bind(view.initial(), view.initial_buffers(), train=False)
    torch.testing.assert_close(evaluate(x), model(x), rtol=1e-12, atol=1e-12)
    train = view.bind(view.initial(), view.initial_buffers(), train=True)
    assert not torch.equal(train(x), train(x))
    torch.testing.assert_close(evaluate(x), model(x), rtol=1e-12, atol=1e-12)


def test_a_training_part_follows_an_evaluating_whole():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double().eval()
    model[1].train()
    x = torch.randn(8, 4, dtype=torch.float64)
    view = FunctionalModule(model)
    output = view.bind(view.initial(), view.initial_buffers(), train=False)(x)
    torch.testing.assert_close(output, model.eval()(x), rtol=1e-12, atol=1e-12)


def test_a_dropout_left_in_eval_stays_silent():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    model[1].eval()
    x = torch.randn(8, 4)
    view = FunctionalModule(model)
    net = view.bind(view.initial(), {}, noise=view.draw_noise(0, x))
    assert torch.equal(net(x), model(x))


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
