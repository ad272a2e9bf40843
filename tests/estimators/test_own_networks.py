"""Tests of ``calibrant.fit`` with users' networks and data: networks, loaders, pretrained models, interrupts."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import fx, nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.methods import Calibrated, Ensemble, Samples, Standard, standard
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.standard import VariedRates, best_subset, next_rate
from tests.estimators.own_cases import SHORT, small


class Named(nn.Module):
    """Takes words and a mask, and has no single linear layer at its end."""

    def __init__(self, form="tensor"):
        super().__init__()
        self.embed, self.a, self.b = nn.Embedding(9, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.form = form

    def forward(self, ids, mask):
        mean = (self.embed(ids) * mask.unsqueeze(-1)).sum(1)
        logits = self.a(mean) + self.b(mean) ** 2
        return {"tensor": logits, "key": {"logits": logits}, "first": (logits, mean)}[self.form]


@pytest.mark.parametrize("form", ["tensor", "key", "first"])
def test_batches_of_several_inputs_and_outputs_of_every_form(form):
    ids, mask, y = torch.randint(0, 9, (60, 5)), torch.randint(0, 2, (60, 5)), torch.arange(60) % 3
    nested = [((ids[k : k + 20], mask[k : k + 20]), y[k : k + 20]) for k in (0, 20, 40)]
    flat = DataLoader(TensorDataset(ids, mask, y), batch_size=20)
    dicts = [{"ids": i, "mask": m, "label": t, "text": ["…"] * 20} for (i, m), t in nested]
    torch.manual_seed(1)
    net, found = Named(form), []
    for train in (nested, flat, dicts, ((ids, mask), y), ({"ids": ids, "mask": mask}, y.numpy())):
        method = Calibrated("temperature", Standard(epochs=2, batch_size=20))
        result = calibrant.fit(net, train, nested, method=method)
        found.append(result.probs((ids, mask)))
        torch.testing.assert_close(result.probs({"ids": ids, "mask": mask}), found[-1])
        torch.testing.assert_close(result.probs(train if not isinstance(train, tuple) else flat), found[-1])
        with torch.no_grad():
            torch.testing.assert_close(result.module(ids, mask).double().softmax(1), found[-1], atol=1e-5, rtol=0)
        assert isinstance(result.module, fx.GraphModule)
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


@pytest.mark.parametrize("method", [SHORT, Ensemble(Standard(epochs=2), members=3)])
def test_means_of_networks_as_one_module(method):
    torch.manual_seed(0)
    x, y = torch.randn(80, 4), torch.randint(0, 3, (80,))
    result = calibrant.fit(nn.Linear(4, 3), (x[:60], y[:60]), (x[60:], y[60:]), method=method)
    with torch.no_grad():
        torch.testing.assert_close(result.module(x).double().softmax(1), result.probs(x), atol=1e-5, rtol=0)
    twin = pickle.loads(pickle.dumps(result.module))
    assert torch.equal(twin(x), result.module(x))


class Fixed:
    """A network that gives the same logits for every input."""

    outer_steps = 1

    def __init__(self, *logits):
        self.params = torch.tensor(logits)

    def logits(self, inputs):
        return self.params.expand(len(inputs), -1)


def test_the_networks_that_are_best_together_are_kept():
    """Half of the labels are 0. Two networks with opposite errors beat one that is nearer to the truth."""
    part = Samples(torch.zeros(100, 1), torch.arange(100) % 2)
    left, right, near, wrong = Fixed(1.0, 0.0), Fixed(0.0, 1.0), Fixed(0.3, 0.0), Fixed(9.0, 0.0)
    assert best_subset([left, near, wrong], part) == (near,)
    assert best_subset([left, near, right, wrong], part) == (left, right)


@pytest.mark.parametrize(("rates", "left"), [((1e30, 0.01), 1), ((1e30, 1e29), 0)])
def test_a_learning_rate_that_breaks_down_is_left_out(monkeypatch, rates, left):
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.randint(0, 2, (60,))
    net, data = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), ((x, y), (x[:30], y[:30]))
    given = iter(rates)
    monkeypatch.setattr(standard, "next_rate", lambda tried, first: next(given))
    method = VariedRates(AveragedNetwork(epochs=5), members=2)
    if left:
        assert len(calibrant.fit(net, *data, method=method).networks) == left
    else:
        with pytest.raises(calibrant.bilevel.NonFiniteError):
            calibrant.fit(net, *data, method=method)


def test_learning_rates_are_searched_beyond_the_better_end():
    assert next_rate({}, 0.01) == 0.01
    assert next_rate({0.01: 0.5}, 0.01) == pytest.approx(0.03)
    assert next_rate({0.01: 0.5, 0.03: 0.4}, 0.01) == pytest.approx(0.09)
    assert next_rate({0.01: 0.5, 0.03: 0.6}, 0.01) == pytest.approx(0.01 / 3)
    assert next_rate({0.01: 0.5, 0.03: 0.4, 0.09: 0.7}, 0.01) == pytest.approx(0.01 / 3)
    assert next_rate({0.01: 0.5, 0.03: math.inf}, 0.01) == pytest.approx(0.01 / 3)


def test_a_calibrator_without_a_torch_form_says_so():
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    result = calibrant.fit(nn.Linear(4, 2), (x, y), (x[:50], y[:50]), method=Calibrated("isotonic", Standard(epochs=1)))
    with pytest.raises(ValueError, match=r"Isotonic has no form as a torch module. Use probs"):
        _ = result.module
    assert len(result.modules) == 1


def test_a_frozen_backbone_rests_and_the_head_learns():
    model, (train, val), _ = small("digits")
    resting = copy.deepcopy(model)
    resting.body.requires_grad_(False).eval()
    for net, freeze in ((model, "backbone"), (resting, None)):
        result = calibrant.fit(net, train, val, freeze=freeze, networks=1, epochs=2)
        own, trained = net.state_dict(), result.modules[0].state_dict()
        assert {name for name in own if not torch.equal(own[name], trained[name])} == {"head.weight", "head.bias"}
        assert [p.requires_grad for p in result.modules[0].parameters()] == [p.requires_grad for p in net.parameters()]
    model.body[0].requires_grad_(False)
    changed = calibrant.fit(model, train, val, networks=1, epochs=2).modules[0]
    assert torch.equal(changed.body[0].weight, model.body[0].weight)
    assert not torch.equal(changed.body[4].weight, model.body[4].weight)


def test_what_cannot_be_frozen():
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2), nn.LayerNorm(2))
    with pytest.raises(ValueError, match=r"head could not be found.*name that with head='…'.*'0', '1'"):
        calibrant.fit(net, (x, y), (x[:9], y[:9]), freeze="backbone")
    with pytest.raises(ValueError, match="something follows '1'"):
        calibrant.fit(net, (x, y), (x[:9], y[:9]), freeze="backbone", head="1")
    with pytest.raises(ValueError, match=r"freeze must be 'backbone' or None; got \['body'\]"):
        calibrant.fit(net, (x, y), (x[:9], y[:9]), freeze=["body"])
    with pytest.raises(ValueError, match="nothing to train"):
        calibrant.fit(nn.Linear(4, 2).requires_grad_(False), (x, y), (x[:9], y[:9]))


def test_a_trained_network_is_fine_tuned_and_not_redrawn():
    """With labels that cannot be learned in a step, all networks stay near the trained one."""
    torch.manual_seed(0)
    x, y = torch.randn(80, 4), torch.randint(0, 2, (80,))
    net = nn.Linear(4, 2)
    with torch.no_grad():
        net.weight.mul_(50.0)
    for given in ({}, {"networks": 1}):
        result = calibrant.fit(net, (x[:60], y[:60]), (x[60:], y[60:]), epochs=1, learning_rate=1e-4, **given)
        for module in result.modules:
            torch.testing.assert_close(module.weight, net.weight, atol=0.1, rtol=0)


@pytest.mark.parametrize(("networks", "calibrator"), [(1, "temperature"), (2, None), (1, "isotonic")])
def test_files(tmp_path, networks, calibrator):
    torch.manual_seed(0)
    x, y = torch.randn(80, 4), torch.randint(0, 3, (80,))
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    given = {"method": Calibrated(calibrator, Standard(epochs=2))} if calibrator else {"networks": 2, "epochs": 2}
    result = calibrant.fit(net, (x[:60], y[:60]), (x[60:], y[60:]), **given)
    result.save(tmp_path / "net.calibrant")
    again = calibrant.Trained.load(tmp_path / "net.calibrant", net)
    torch.testing.assert_close(again.probs(x), result.probs(x), atol=1e-6, rtol=0)
    if calibrator != "isotonic":
        torch.testing.assert_close(again.module(x), result.module(x))
    with pytest.raises(ValueError, match="another class or other sizes than the given Linear"):
        calibrant.Trained.load(tmp_path / "net.calibrant", nn.Linear(4, 3))
    with pytest.raises(ValueError, match="is not a network"):
        calibrant.Trained.load(__file__, net)


def test_data_that_cannot_be_right():
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    net, val = nn.Linear(4, 2), (torch.randn(20, 4), torch.arange(20) % 2)

    def batches(*rows):
        return DataLoader(TensorDataset(*rows), batch_size=10)

    with pytest.raises(ValueError, match=r"labels of train do not fit the network, which has 2 outputs.*from 0 to 3"):
        calibrant.fit(net, (x, torch.arange(60) % 4), val)
    with pytest.raises(ValueError, match=r"labels of val do not fit the network"):
        calibrant.fit(net, (x, y), (x, y + 1))
    with pytest.raises(ValueError, match="val cannot be read: The loader gave no batch"):
        calibrant.fit(net, (x, y), [])
    with pytest.raises(ValueError, match="train must hold at least one sample"):
        calibrant.fit(net, (x[:0], y[:0]), val)
    with pytest.raises(ValueError, match="train cannot be read: A batch must be"):
        calibrant.fit(net, [x], val)
    with pytest.raises(ValueError, match="A batch holds 3 inputs, but the network takes 1: input"):
        calibrant.fit(net, batches(x, x, x, y), val)
    with pytest.raises(ValueError, match="its labels under 'labels' or 'label'"):
        calibrant.fit(net, [{"input": x, "klass": y}], val)
    with pytest.raises(ValueError, match=r"labels are a tensor of class indices; got a list"):
        calibrant.fit(net, [(x, ["a"] * 60)], val)
    with pytest.raises(TypeError, match=r"val must be .inputs, labels. as tensors or arrays.*got a str"):
        calibrant.fit(net, (x, y), "val.csv")
    with pytest.raises(TypeError, match=r"model must be an nn.Module"):
        calibrant.fit("net", (x, y), val)
    with pytest.raises(ValueError, match="let the last layer have two outputs"):
        calibrant.fit(nn.Linear(4, 1), (x, y), val)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        calibrant.fit(net, (x, y), val, epochs=0)
    with pytest.raises(ValueError, match="networks must be at least 1, and is for the default method only"):
        calibrant.fit(net, (x, y), val, method=SHORT, networks=2)
    with pytest.raises(calibrant.bilevel.NonFiniteError, match=r"not finite at .*inputs that are not finite"):
        calibrant.fit(net, (torch.where(torch.arange(60)[:, None] == 7, torch.nan, x), y), val, networks=1)
    with pytest.warns(UserWarning, match="train and val are the same data"):
        calibrant.fit(net, same := (x, y), same, networks=1, epochs=1)
    with pytest.warns(UserWarning, match="of one class. If the data are sorted by class, shuffle them"):
        calibrant.fit(net, batches(x, y.sort().values), val, networks=1, epochs=1)


def test_predictions_of_loaders():
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    result = calibrant.fit(nn.Linear(4, 2), (x, y), (x[:20], y[:20]), networks=1, epochs=1)
    expected = result.probs(x)
    for loader in ([x[:30], x[30:]], DataLoader(TensorDataset(x), 25), DataLoader(TensorDataset(x, y), 25)):
        torch.testing.assert_close(result.probs(loader), expected)
    with pytest.warns(UserWarning, match="The loader shuffles"):
        result.probs(DataLoader(TensorDataset(x), 25, shuffle=True))
    with pytest.raises(ValueError, match="nothing to predict"):
        result.probs([])


def test_a_device_may_be_named():
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    result = calibrant.fit(nn.Linear(4, 2), (x, y), (x[:20], y[:20]), networks=1, epochs=1, device="cpu")
    assert next(result.module.parameters()).device.type == "cpu"
    with pytest.raises(ValueError, match="device must be"):
        calibrant.fit(nn.Linear(4, 2), (x, y), (x[:20], y[:20]), device="gpu")
