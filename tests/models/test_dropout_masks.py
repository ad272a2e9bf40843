"""Dropout masks that are drawn outside a module."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.models import FunctionalModule
from tests.models.module_cases import IMAGE, ROW, SEQUENCE, Twice

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
