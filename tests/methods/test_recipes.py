"""The recipes of the default: the kind of a network, the user's own settings, and runs that diverge."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.bilevel import SGD, Adam, AdamW, Bilevel, NonFiniteError, Plain, Truncated, composed, solve
from calibrant.methods import Samples, Task
from calibrant.methods.averaged import LOOKS, AveragedNetwork, BestAverage, Divergence, per_sample
from calibrant.methods.core.samples import as_part
from calibrant.methods.fit.defaults import default_method, story_of
from calibrant.methods.recipes import RECIPES, SMALL_RECIPES, as_optimizer, kind_of, recipe_for


def rows(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    noise = -torch.log(-torch.log(torch.rand(count, 3, generator=generator)))
    return x, (2 * x[:, :3] + noise).argmax(1)


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


class SelfAttention(nn.Module):
    """A layer that is known by its name only."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4, 4)


def kaiming(module):
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            nn.init.zeros_(layer.bias)
    return module


def conv(norm=True):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4) if norm else nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))


KINDS = {
    "convolution": [conv, lambda: kaiming(conv())],
    "transformer": [
        lambda: nn.TransformerEncoderLayer(8, 2, 16),
        lambda: nn.Sequential(nn.Embedding(5, 4), SelfAttention()),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
    ],
    "recurrent": [lambda: nn.GRU(3, 4), lambda: nn.Sequential(nn.Conv1d(1, 3, 3), nn.LSTMCell(3, 4))],
    "other-conv": [lambda: conv(norm=False), lambda: kaiming(conv(norm=False))],
    "perceptron": [perceptron],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_a_network_and_of_a_trained_one(kind):
    for build in KINDS[kind]:
        net = build()
        assert kind_of(net) == kind
        assert kind_of(net, pretrained=True) == "pretrained"
        with torch.no_grad():
            for values in net.parameters():
                values.add_(torch.randn_like(values))
        assert kind_of(net) == "pretrained"
        assert kind_of(net, pretrained=False) == kind


def test_the_rate_of_adam_grows_with_the_batch_size():
    rates = [recipe_for(perceptron(), batch_size=size).rate for size in (16, 128, 512, 10_000)]
    assert rates == pytest.approx([0.004, 0.004, 0.008, 0.012])
    assert recipe_for(conv(), batch_size=1024) == SMALL_RECIPES["convolution"]
    assert recipe_for(perceptron(), True, 1024) == RECIPES["pretrained"]
    loader = DataLoader(TensorDataset(*rows(5000)), batch_size=512)
    result = calibrant.fit(perceptron(), loader, rows(300, 1), epochs=1)
    assert result.extras["method"] == "small perceptron: AdamW, one cycle up to 0.008"
    several = default_method(perceptron(), Task(as_part(loader, perceptron()), None, 3, 0), networks=3)
    assert several.base.rate == pytest.approx(0.008)


def test_the_rate_depends_on_the_number_of_trainable_parameters():
    net = nn.Sequential(nn.Conv2d(1, 400, 3), nn.BatchNorm2d(400), nn.Flatten(), nn.Linear(400, 400))
    assert recipe_for(net) == RECIPES["convolution"]
    assert recipe_for(conv()) == SMALL_RECIPES["convolution"]
    net[1](torch.randn(2, 400, 3, 3))
    assert recipe_for(net).optimizer == RECIPES["convolution"].optimizer
    assert recipe_for(net).kind.endswith("BatchNorm, pretrained")
    assert recipe_for(net, pretrained=True) == RECIPES["pretrained"]
    net[3] = nn.Linear(400, 3000)
    assert recipe_for(net) == RECIPES["pretrained-conv"]
    assert recipe_for(net, few=True) == recipe_for(net, pretrained=True) == RECIPES["pretrained"]
    net[3].weight.requires_grad_(False)
    assert recipe_for(net).optimizer == SMALL_RECIPES["convolution"].optimizer


def test_the_result_says_what_was_taken_and_why(capsys):
    result = calibrant.fit(perceptron(), rows(4100), rows(200, 1), epochs=1, verbose=True)
    told = "small perceptron: AdamW, one cycle up to 0.004"
    assert result.extras["method"] == told
    shown = capsys.readouterr().err
    assert told in shown
    assert re.search(r"epoch 1 of 1, training loss \d\.\d+, validation loss \d\.\d+\n", shown)
    assert story_of(RECIPES["convolution"], conv()) == "convolutional network with BatchNorm: SGD, one cycle up to 0.2"


def test_the_validation_part_is_evaluated_at_most_twenty_times(monkeypatch):
    looks = []
    look = BestAverage.look
    monkeypatch.setattr(BestAverage, "look", lambda self, run: [looks.append(run.step), look(self, run)])
    task = Task(Samples(*rows(64)), Samples(*rows(20, 1)), 3, model=perceptron())
    AveragedNetwork(epochs=501, batch_size=32, patience=None).fit(task)
    assert LOOKS / 2 < len(looks) <= LOOKS + 1  # the last state is always evaluated


def test_settings_of_a_torch_optimizer_are_used():
    given = torch.optim.SGD(perceptron().parameters(), 0.5, momentum=0.9, nesterov=True, weight_decay=0.01)
    method = AveragedNetwork(epochs=1, batch_size=None, optimizer=as_optimizer(given), schedule="constant")
    assert method.scheduled(10) == SGD(0.5, momentum=0.9, nesterov=True, weight_decay=0.01)
    adamw = torch.optim.AdamW(perceptron().parameters(), 1e-3, betas=(0.8, 0.9), weight_decay=0.2)
    assert as_optimizer(adamw) == AdamW(1e-3, betas=(0.8, 0.9), weight_decay=0.2)
    assert as_optimizer(torch.optim.Adam(perceptron().parameters())) == Adam(1e-3)
    two = [{"params": part.parameters(), "momentum": 0.1 * k} for k, part in enumerate((perceptron(), perceptron()))]
    for wrong in (
        torch.optim.RMSprop(perceptron().parameters()),
        torch.optim.Adam(perceptron().parameters(), amsgrad=True),
        torch.optim.SGD(two, 0.1),
    ):
        with pytest.raises(ValueError, match="SGD, Adam or AdamW without"):
            as_optimizer(wrong)
    of_two = torch.optim.SGD([{"params": part.parameters()} for part in (perceptron(), perceptron())], 0.1)
    with pytest.raises(ValueError, match="got 8 of 8 parameters from something else"):
        as_optimizer(of_two, perceptron())
    with pytest.raises(TypeError, match="optimizer must be one of"):
        as_optimizer("sgd")


def grouped(net, kind, rate, **settings):
    """Two rates and two decays; the bias of the first layer is left out."""
    groups = [
        {"params": [net[0].weight], "weight_decay": 0.3},
        {"params": list(net[2].parameters()), "lr": rate / 4, "weight_decay": 0.0},
    ]
    return kind(groups, rate, **settings)


@pytest.mark.parametrize(
    ("kind", "rate", "settings"),
    [
        (torch.optim.SGD, 0.2, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, 0.01, {}),
        (torch.optim.AdamW, 0.01, {"betas": (0.8, 0.95)}),
    ],
)
def test_groups_of_parameters_are_trained_as_by_torch(kind, rate, settings):
    x, y = rows(30)
    net = perceptron()
    optimizer = as_optimizer(grouped(net, kind, rate, **settings), net)
    trained = solve(Bilevel(net, train=(x, y)), hypergradient=Plain(5), inner_optimizer=optimizer, outer_steps=2)
    torch_optimizer = grouped(net, kind, rate, **settings)
    start = net[0].bias.detach().clone()
    for _ in range(10):
        torch_optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        torch_optimizer.step()
    own = trained.export(perceptron()).state_dict()
    torch.testing.assert_close(own, net.state_dict(), rtol=1e-4, atol=1e-5)
    assert torch.equal(own["0.bias"], start)


def test_groups_need_plain_training_and_the_parameters_of_the_model():
    net, x = perceptron(), rows(300)
    result = calibrant.fit(net, x, rows(100, 1), epochs=2, optimizer=grouped(net, torch.optim.SGD, 0.1))
    trained = result.modules[0]
    assert torch.equal(trained[0].bias, net[0].bias)
    assert not torch.equal(trained[0].weight, net[0].weight)
    problem = Bilevel(net, calibrant.bilevel.SampleWeights(300), train=x, val=x)
    optimizer = as_optimizer(grouped(net, torch.optim.SGD, 0.1), net)
    with pytest.raises(ValueError, match="groups of the inner optimiser must be empty"):
        solve(
            problem, hypergradient=Truncated(4, 2), inner_optimizer=optimizer, outer_optimizer=SGD(1.0), outer_steps=1
        )


def test_own_optimizer_schedule_and_loss_train_one_calibrated_network():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1)
    shares = []
    result = calibrant.fit(
        perceptron(), rows(300), rows(100, 1), epochs=4, optimizer=SGD(0.1), loss=loss,
        schedule=lambda share: shares.append(share) or 1 - share,
    )  # fmt: skip
    assert len(result.modules) == 1
    assert result.temperature is not None
    assert (min(shares), max(shares)) == (0.0, 1.0)
    assert result.extras["method"].startswith("small perceptron: SGD, a schedule of its own")
    with pytest.raises(ValueError, match=r"schedule must be .one-cycle., .cosine. or .constant."):
        calibrant.fit(perceptron(), rows(300), rows(100, 1), schedule="step")
    with pytest.raises(ValueError, match="has no optimizer"):
        calibrant.fit(perceptron(), rows(300), rows(100, 1), method="bo4sc", optimizer=SGD(0.1))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 5.0])])
def test_a_loss_of_torch_keeps_its_mean(weight, smoothing):
    loss = nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing)
    logits, labels = torch.randn(20, 3), torch.arange(20) % 3
    values = per_sample(loss)(logits, labels)
    assert values.shape == (20,)
    torch.testing.assert_close(values.mean(), loss(logits, labels))
    assert loss.reduction == "mean"
    assert per_sample(F.cross_entropy) is F.cross_entropy


def test_clipped_gradients_are_those_of_torch():
    x, y = rows(30)
    optimizer = SGD(0.5, momentum=0.9, clip_norm=0.05)
    trained = solve(
        Bilevel(perceptron(), train=(x, y)), hypergradient=Plain(4), inner_optimizer=optimizer, outer_steps=1
    )
    net = perceptron()
    torch_optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)
    for _ in range(4):
        torch_optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        torch_optimizer.step()
    torch.testing.assert_close(trained.export(perceptron()).state_dict(), net.state_dict(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="clip_norm must be positive"):
        SGD(0.1, clip_norm=0.0)
    problem = Bilevel(perceptron(), calibrant.bilevel.SampleWeights(30), train=(x, y), val=(x, y))
    with pytest.raises(ValueError, match="differentiates training steps"):
        solve(
            problem, hypergradient=Truncated(4, 2), inner_optimizer=optimizer, outer_optimizer=SGD(1.0), outer_steps=1
        )


def test_weight_decay_spares_biases_and_embeddings():
    net = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(4, 2))
    problem = Bilevel(net, train=(torch.zeros(6, 2).long(), torch.arange(6) % 2))
    assert problem.view.weight_mask().tolist() == [0.0] * 6 + [1.0] * 8 + [0.0] * 2


def squares(logits, labels):
    """Gradient descent on this loss diverges at rates above about 1."""
    return (logits - F.one_hot(labels, 3)).square().sum(1)


def test_a_run_that_diverges_is_repeated_more_slowly():
    settings = {"schedule": "constant", "loss": squares, "epochs": 2}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = calibrant.fit(nn.Linear(4, 3), rows(4100), rows(300, 1), optimizer=SGD(3.2), **settings)
    told = [str(w.message) for w in found if "diverged" in str(w.message)]
    assert told[-1].startswith("Training diverged at a learning rate of 3.2 and was repeated at 1.6.")
    assert 1 < len(told) <= 4
    assert result.probs(rows(10)[0]).isfinite().all()
    with pytest.raises(NonFiniteError):
        calibrant.fit(nn.Linear(4, 3), rows(4100), rows(300, 1), optimizer=SGD(1000.0), **settings)


def test_divergence_is_noticed_in_the_first_epoch():
    """The loss is still finite then, and a loss that is high from the start but falls is no divergence."""

    def train(net, rate):
        problem = Bilevel(net, train=rows(4100), batch_size=128, inner_loss=composed(squares))
        watch = Divergence(3, every=1)
        return solve(
            problem, hypergradient=Plain(1), inner_optimizer=SGD(rate), outer_steps=32, callbacks=[watch]
        )  # fmt: skip

    with pytest.raises(NonFiniteError, match=r"rose from \S+ to \S+ at outer step \d+: training diverges"):
        train(nn.Linear(4, 3), 1.6)
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.mul_(100)
    train(net, 0.1)


def test_a_network_at_chance_level_is_told():
    x, y = rows(600)
    with pytest.warns(UserWarning, match="at chance level: its log-loss is"):
        calibrant.fit(perceptron(), (torch.zeros_like(x), y), (torch.zeros_like(x), y.flip(0)), epochs=1, networks=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrant.fit(perceptron(), (x, y), rows(300, 1), epochs=2, networks=1)


class Viewed(nn.Module):
    """A network that fails in the channels-last format, where ``view`` needs ``reshape``."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x).view(len(x), -1))


class FullPrecision(nn.Module):
    """A network that fails in bfloat16."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return torch.zeros(len(x), 3).index_add(0, torch.arange(len(x)), self.layer(x))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.lstm(x[..., None])[0][:, -1])


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Linear(1, 8), layer, nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.parametrize(
    ("build", "shape", "told"),
    [
        (perceptron, (4,), None),
        (Last, (4,), None),
        (encoder, (4,), None),
        (Viewed, (2, 4, 4), "with the channels-last format, so"),
        (FullPrecision, (4,), "with bfloat16 and the channels-last format, so"),
    ],
)  # fmt: skip
def test_bfloat16_is_left_out_where_a_network_fails_with_it(monkeypatch, build, shape, told):
    """As on a GPU: torch has bfloat16 on a CPU too."""
    monkeypatch.setattr(AveragedNetwork, "uses_bfloat16", lambda self, model: self.precision == "auto")
    x, y = torch.randn(60, *shape), torch.arange(60) % 3
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = calibrant.fit(build(), (x, y), (x, y.clone()), epochs=2, networks=1)
    assert [str(w.message) for w in found if "cannot be trained with" in str(w.message)] == (
        [f"The network cannot be trained {told} it is trained without, which is slower. "
         'Pass precision="float32" to avoid this warning.'] if told else []
    )  # fmt: skip
    assert result.extras["method"].endswith("bfloat16") == (build is not FullPrecision)
    assert result.solution.problem.autocast == (None if build is FullPrecision else torch.bfloat16)
    assert result.probs(x).isfinite().all()
