"""The confidence map of any network: when it is chosen, what it learns, and its form as a plain module and a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import approx_fprime, minimize_scalar
from torch import fx, nn

import calibrant
from calibrant.bilevel import LogitMap
from calibrant.methods import Calibrated, Standard
from calibrant.methods import confidence as confidence_map
from calibrant.methods.confidence import Choice, Mapped, choose_map, fit_map


def rows(count, seed=0, *, classes=4, crooked=True):
    """Logits and labels. Crooked logits are over-confident only where the lead of the top class is small."""
    generator = torch.Generator().manual_seed(seed)
    true = 2.5 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0]
    if not crooked:
        return true, labels
    top = true.topk(2, 1).values
    return true * (1 + 2 * torch.exp(-(top[:, :1] - top[:, 1:]))), labels


def nll(logits, labels):
    return float(F.cross_entropy(logits, labels))


def moved(hidden=5):
    """A map with parameters as after training."""
    torch.manual_seed(0)
    found = LogitMap(hidden).double()
    with torch.no_grad():
        for values in found.parameters():
            values.add_(0.3 * torch.randn_like(values))
    return found.requires_grad_(False)


def test_a_needed_map_is_chosen_and_better_on_new_rows():
    choice, (z, y) = choose_map(*rows(3000)), rows(5000, 1)
    assert choice.extras["kind"] == "map"
    assert choice.gain > choice.error > 0
    assert nll(choice.map(z), y) < nll(fit_map(*rows(3000), hidden=0)(z), y) - 0.005


def test_few_rows_get_a_temperature():
    choice = choose_map(*rows(300))
    assert choice.extras == {"kind": "temperature", "gain": None, "error": None}
    assert choose_map(*rows(3000), hidden=0).map.hidden == 0


@pytest.mark.parametrize("count", [60, 300, 1500])
def test_calibrated_logits_stay_as_they_are(count):
    """The loss of a fit with k free numbers exceeds the best one by about k/2n."""
    z, y = rows(20000, 1, crooked=False)
    for seed in range(3):
        own = rows(count, seed + 2, crooked=False)
        found = choose_map(*own).map if count >= confidence_map.FEWEST else fit_map(*own)
        assert nll(found(z), y) < nll(z, y) + 5 / count


def test_a_temperature_has_the_least_penalised_loss():
    z, y = rows(200)
    best = minimize_scalar(
        lambda log: float(F.cross_entropy(z * np.exp(log), y, reduction="sum")) + log**2 / (2 * 0.5**2),
        bounds=(-3, 3), method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    assert np.log(fit_map(z, y, hidden=0).factor) == pytest.approx(best.x, abs=1e-4)
    right = torch.eye(3, dtype=torch.float64).repeat(2, 1) * 5
    assert 1 < fit_map(right, torch.arange(6) % 3, hidden=0).factor < 2  # without the prior it would be infinite


@pytest.mark.parametrize("hidden", [0, 5])
def test_penalised_loss_and_its_gradient(hidden):
    z, y = rows(50)
    given = moved(hidden)
    given.largest = 2.0  # the factor of some rows is at its bound
    loss = confidence_map._Penalised(given, z, y, torch.linspace(0.5, 1.5, 50, dtype=torch.float64))
    flat = torch.cat([v.reshape(-1) for v in given.parameters()]).numpy() + 0.1
    assert loss(flat)[1] == pytest.approx(approx_fprime(flat, lambda own: loss(own)[0], 1e-7), abs=1e-4)
    mapped = F.cross_entropy(given(z), y, reduction="none") @ torch.from_numpy(loss.share)
    prior = sum((v**2).sum() for v in (given.first, given.first_bias, given.second * 10, given.constant * 2)) / 2
    assert loss(flat - 0.1)[0] == pytest.approx(float(mapped + prior))


def test_a_weight_of_two_is_a_row_twice():
    z, y = rows(120)
    weights = 1.0 + (torch.arange(120) % 3 == 0)
    repeated = torch.arange(120).repeat_interleave(weights.long())
    # weights have a mean of one, so the prior counts as for 120 rows
    one, other = fit_map(z, y, weights, hidden=0), fit_map(z[repeated], y[repeated], hidden=0)
    assert one.factor == pytest.approx(other.factor, rel=0.02)
    assert one.factor != pytest.approx(fit_map(z, y, hidden=0).factor, rel=1e-4)


def test_of_very_many_logits_random_rows_are_used(monkeypatch):
    whole = fit_map(*rows(1000), hidden=0).factor
    monkeypatch.setattr(confidence_map, "LARGEST", 400)  # a hundred rows
    few = fit_map(*rows(1000), hidden=0).factor
    assert few == fit_map(*rows(1000), hidden=0).factor != whole
    assert few == pytest.approx(whole, rel=0.5)
    assert choose_map(*rows(1000)).gain is None  # the remaining rows are too few for a map


class NoHead(nn.Module):
    """The logits are a product of two layers' outputs."""

    def __init__(self, classes):
        super().__init__()
        self.a, self.b = nn.Linear(4, classes), nn.Linear(4, classes)

    def forward(self, inputs):
        return self.a(inputs) * self.b(inputs)


CASES = {
    "two classes": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), 2, 1),
    "three networks": (lambda: nn.Linear(4, 3), 3, 3),
    "no head": (lambda: NoHead(5), 5, 1),
    "double precision": (lambda: nn.Linear(4, 3).double(), 3, 1),
}


def trained(monkeypatch, name):
    """A result of ``calibrant.fit`` that has a map, whatever the data."""
    build, classes, networks = CASES[name]
    monkeypatch.setattr(confidence_map, "choose_map", lambda *rows, hidden: Choice(moved(), 0.1, 0.01))
    torch.manual_seed(0)
    x, y, net = torch.randn(60, 4), torch.arange(60) % classes, build()
    x = x.to(next(net.parameters()).dtype)
    return calibrant.fit(net, (x[:40], y[:40]), (x[40:], y[40:]), networks=networks, epochs=2), net, x


@pytest.mark.parametrize("name", CASES)
def test_a_map_as_a_plain_module_and_in_a_file(monkeypatch, tmp_path, name):
    result, net, x = trained(monkeypatch, name)
    assert isinstance(result.fitted, Mapped)
    assert isinstance(result.module, fx.GraphModule)
    probs = result.probs(x)
    torch.testing.assert_close(result.module(x).double().softmax(1), probs, atol=1e-5, rtol=0)
    assert not torch.allclose(result.fitted.model.probs(x), probs, atol=1e-3)
    torch.testing.assert_close(torch.jit.script(result.module)(x), result.module(x))
    result.save(tmp_path / "net.calibrant")
    again = calibrant.Trained.load(tmp_path / "net.calibrant", net)
    torch.testing.assert_close(again.probs(x), probs, atol=1e-6, rtol=0)
    torch.testing.assert_close(again.module(x), result.module(x))
    assert again.extras["confidence"] == {"kind": "map", "gain": 0.1, "error": 0.01}


def test_a_temperature_before_or_after_a_map(tmp_path):
    torch.manual_seed(0)
    x, y, net = torch.randn(60, 4), torch.arange(60) % 3, nn.Linear(4, 3)
    plain = calibrant.fit(net, (x, y), (x[:30], y[:30]), method=Calibrated("temperature", Standard(epochs=2)))
    inner, curve = plain.fitted, moved()
    before = Mapped(inner, curve)
    after = replace(inner, model=Mapped(inner.model, curve))
    for number, fitted in enumerate((before, after)):
        result = replace(plain, fitted=fitted)
        torch.testing.assert_close(result.module(x).double().softmax(1), result.probs(x), atol=1e-5, rtol=0)
        result.save(tmp_path / f"{number}.calibrant")
        again = calibrant.Trained.load(tmp_path / f"{number}.calibrant", net)
        torch.testing.assert_close(again.probs(x), result.probs(x), atol=1e-6, rtol=0)
    assert not torch.allclose(before.probs(x), after.probs(x), atol=1e-3)


def test_the_argument_calibration(monkeypatch):
    torch.manual_seed(0)
    x, y, net = torch.randn(60, 4), torch.arange(60) % 3, nn.Linear(4, 3)
    result = calibrant.fit(net, (x[:40], y[:40]), (x[40:], y[40:]), networks=1, epochs=2, calibration="temperature")
    assert type(result.module) is nn.Linear
    torch.testing.assert_close(result.module.weight * result.temperature, result.modules[0].weight)
    assert replace(result, fitted=Mapped(result.fitted.model, moved())).temperature is None
    for given in ({"calibration": "isotonic"}, {"calibration": "auto", "method": Standard()}):
        with pytest.raises(ValueError, match="calibration must be 'auto' or 'temperature'"):
            calibrant.fit(net, (x, y), (x, y), **given)
    with pytest.raises(ValueError, match="The calibrator 'map' needs a validation part"):
        calibrant.fit(net, (x, y), method=Calibrated("map", Standard(epochs=1)))
