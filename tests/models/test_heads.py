"""Tests of the search for the head, the layer that computes the logits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.models import FunctionalModule
from calibrant.models.functional.heads import find_head

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A body, a head, and further layers of a case."""

    def __init__(self, **layers):
        super().__init__()
        self.first = layers.pop("first", None)
        self.head = nn.Linear(5, 3)
        self.body = nn.Linear(4, 5)
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


class FinalNorm(Net):
    def forward(self, x):
        return self.norm(super().forward(x))


class NormBeforeHead(Net):
    def forward(self, x):
        return self.head(self.norm(torch.tanh(self.body(x))))


class TwoOutputs(Net):
    def forward(self, x):
        features = torch.tanh(self.body(x))
        return self.head(features), features


class NamedOutput(Net):
    def forward(self, x):
        return SimpleNamespace(logits=super().forward(x), loss=None)


class MappingOutput(Net):
    def forward(self, x):
        return {"logits": super().forward(x)}


class TiedFunction(nn.Module):
    """The decoder is the embedding's matrix, used by a function."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Linear(4, 5, bias=False), nn.Linear(5, 5)

    def forward(self, x):
        return F.linear(torch.tanh(self.mix(self.embed(x))), self.embed.weight.T)


class TiedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.decode = nn.Linear(4, 4), nn.Linear(4, 4)
        self.decode.weight = self.embed.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.embed(x)))


class Shifted(Net):
    def forward(self, x):
        return super().forward(x) + 1.0


class Repeated(nn.Module):
    """One layer used inside and at the end."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


FOUND = {
    "declared first": (Net(), "head"),
    "an unused last layer": (Net(unused=nn.Linear(5, 7)), "head"),
    "a norm declared last": (NormBeforeHead(norm=nn.LayerNorm(5)), "head"),
    "two outputs": (TwoOutputs(), "head"),
    "an object with logits": (NamedOutput(), "head"),
    "a mapping with logits": (MappingOutput(), "head"),
    "in a sequence": (
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))),
        "2.1",
    ),
    "the whole network": (nn.Linear(4, 3), ""),
}


@pytest.mark.parametrize("case", FOUND)
def test_the_head_is_found_by_running_the_model(case):
    model, name = FOUND[case]
    modes = [m.training for m in model.modules()]
    parts = find_head(model, X)
    assert parts.name == name
    assert [m.training for m in model.modules()] == modes
    view = FunctionalModule(model)
    net = view.bind(view.initial(), view.initial_buffers(), train=False)
    torch.testing.assert_close(net.head(net.features(X)), net.logits(X))
    head_slice = view.head_slice()
    named = view.head_params(view.initial()[head_slice])
    assert all(torch.equal(t, dict(model.named_parameters())[k]) for k, t in named.items())
    assert sum(t.numel() for t in named.values()) == head_slice.stop - head_slice.start


REFUSED = {
    "a norm after it": (FinalNorm(norm=nn.BatchNorm1d(3)), None, "not the output of one linear layer"),
    "a sum after it": (Shifted(), None, "not the output of one linear layer"),
    "a tied function": (TiedFunction(), None, "Linear layers that ran: 'embed', 'mix'"),
    "a tied module": (TiedModule(), None, "shares 'weight' with 'embed'"),
    "called twice": (Repeated(), None, "got 2 calls"),
    "another name": (Net(), "fc", "name of a submodule; got 'fc'"),
    "an inner layer": (Net(), "body", "something follows 'body'"),
    "a layer that does not run": (Net(unused=nn.Linear(5, 7)), "unused", "got 0 calls"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_it_is_unclear_the_error_names_candidates(case):
    model, name, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=sentence) as error:
        find_head(model, X, name)
    told = str(error.value)
    assert "tied module" in case or "Linear layers that ran" in told or "head='head' (Linear)" in told
    assert "head='norm'" not in told


def test_layers_without_parameters_are_not_suggested():
    with pytest.raises(ValueError, match="Put the last layer and everything after it into one submodule"):
        find_head(nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 3, 1), nn.Flatten()), X)


def test_any_submodule_that_ends_the_network_can_be_named():
    model = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3)))
    assert find_head(model, X, "1").name == "1"


def test_a_frozen_head_cannot_move():
    model = Net()
    model.head.requires_grad_(False)
    view = FunctionalModule(model)
    view.locate(X)
    with pytest.raises(ValueError, match="'head' is frozen"):
        view.head_slice()


def test_named_inputs_are_passed_by_name():
    class Named(Net):
        def forward(self, tokens, mask):
            return super().forward(tokens * mask)

    view = FunctionalModule(Named())
    net = view.bind(view.initial(), view.initial_buffers(), train=False)
    inputs = {"mask": torch.ones(6, 4), "tokens": X}
    torch.testing.assert_close(net.logits(inputs), net(X, inputs["mask"]))
    torch.testing.assert_close(net.head(net.features(inputs)), net.logits(inputs))
