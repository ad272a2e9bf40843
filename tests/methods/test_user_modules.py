"""``calibrant.fit`` on modules as users write them: wrapped, compiled, caching, with unusual layers and arguments."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import calibrant
from calibrant.data.streams.batch import map_tensors
from calibrant.methods.fit.untrained import is_untrained
from calibrant.models.functional.network import batch_format, call, logits_of

CLASSES = 3


def rows(n=48, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def perceptron(classes=CLASSES):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))


class Two(nn.Module):
    """Two inputs."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(8, CLASSES)

    def forward(self, left, right):
        return self.fc(torch.cat([self.a(left), self.b(right)], 1).tanh())


class OneTuple(Two):
    """One argument, which is a tuple."""

    def forward(self, pair):
        return super().forward(*pair)


class OneMapping(Two):
    """One argument, which is a mapping; a further one has a default."""

    def forward(self, batch, scale=1.0):
        return super().forward(batch["left"], batch["right"]) * scale


class Caching(nn.Module):
    """Keeps activations of the last call, with their graph."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, CLASSES)
        self(torch.zeros(2, 6))

    def forward(self, x):
        self.last = F.relu(self.body(x))
        self.kept = {"features": [self.last]}
        return self.fc(self.last)


class Checkpointed(nn.Module):
    """Gradient checkpointing."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        body = checkpoint(self.body, x, use_reentrant=False) if self.training else self.body(x)
        return self.fc(F.relu(body))


class Clamp(torch.autograd.Function):
    """An operation without a rule for vmap."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx, slope):
        return slope * (ctx.saved_tensors[0] > 0)


class OwnFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(Clamp.apply(self.body(x)))


class Flow(nn.Module):
    """Control flow that depends on values."""

    def __init__(self):
        super().__init__()
        self.net = perceptron()

    def forward(self, x):
        return self.net(x) if self.net[0].weight.abs().sum() > 0 else x[:, :CLASSES]


class Tokens(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(9, 8, sparse=True), nn.Linear(8, CLASSES)

    def forward(self, ids):
        return self.fc(self.embed(ids).mean(1))


class Random(nn.Module):
    """Dropout that is not switched off in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.net = perceptron()

    def forward(self, x):
        return self.net(F.dropout(x, 0.5, training=True))


class AnyArguments(Two):
    """Takes whatever it is given."""

    def forward(*inputs, **named):
        return Two.forward(*inputs, **named)


def old_weight_norm():
    with pytest.warns(FutureWarning, match="weight_norm"):
        first = nn.utils.weight_norm(nn.Linear(6, 8))
    return nn.Sequential(first, nn.ReLU(), nn.utils.spectral_norm(nn.Linear(8, CLASSES)))


def new_weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, CLASSES))


def pair(n, seed):
    x, y = rows(n, seed)
    return (x, x.flip(1)), y


def mapping(n, seed):
    (left, right), y = pair(n, seed)
    return {"left": left, "right": right}, y


def tokens(n, seed):
    x, y = rows(n, seed)
    return (x[:, :3].abs() * 3).long().clamp_max(8), y


MODULES = {
    "DataParallel": (lambda: nn.DataParallel(perceptron()), rows),
    "torch.compile": (lambda: torch.compile(perceptron(), backend="eager"), rows),
    "two inputs in a wrapper": (lambda: nn.DataParallel(Two()), pair),
    "one tuple": (OneTuple, pair),
    "one mapping": (OneMapping, mapping),
    "any arguments": (AnyArguments, mapping),
    "cached activations": (Caching, rows),
    "gradient checkpointing": (Checkpointed, rows),
    "own function": (OwnFunction, rows),
    "control flow": (Flow, rows),
    "sparse embedding": (Tokens, tokens),
    "old weight norm": (old_weight_norm, rows),
    "new weight norm": (new_weight_norm, rows),
    "bfloat16": (lambda: perceptron().bfloat16(), rows),
}


class Items(Dataset):
    """The samples of data in memory, one at a time."""

    def __init__(self, data):
        self.inputs, self.labels = data

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        inputs = map_tensors(lambda t: t[row], self.inputs)
        if isinstance(inputs, dict):
            return inputs | {"labels": self.labels[row]}
        return inputs, self.labels[row]


def state(model):
    """Everything that ``fit`` must leave as it is."""
    values = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [(m.training, len(m._forward_hooks)) for m in model.modules()]
    return values, modes, [p.requires_grad for p in model.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("settings", [{}, {"networks": 1}, {"loader": True}], ids=["folds", "one network", "loader"])
@pytest.mark.parametrize("case", MODULES)
def test_a_module_is_trained_saved_and_exported(case, settings, tmp_path):
    make, draw = MODULES[case]
    torch.manual_seed(0)
    model, train, val, inputs = make(), draw(48, 0), draw(24, 1), draw(10, 2)[0]
    before = state(model)
    if settings.get("loader"):
        train, val = DataLoader(Items(train), 16), DataLoader(Items(val), 16)
    result = calibrant.fit(model, train, val, epochs=1, **{k: v for k, v in settings.items() if k != "loader"})
    after = state(model)
    assert all(torch.equal(v, after[0][k]) for k, v in before[0].items())
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])

    probs = result.probs(inputs)
    torch.testing.assert_close(probs.sum(1), torch.ones(10, dtype=torch.float64))
    torch.testing.assert_close(result.probs(DataLoader(Items((inputs, torch.zeros(10).long())), 4)), probs)
    low = case == "bfloat16"
    given = batch_format(result.modules[0]).arguments(inputs) if isinstance(inputs, tuple) else inputs
    given = map_tensors(lambda t: t.bfloat16() if low and t.is_floating_point() else t, given)
    with torch.no_grad():
        logits = logits_of(call(result.module, given)).double()
    torch.testing.assert_close(logits.softmax(1), probs, atol=0.03 if low else 1e-5, rtol=0)
    result.save(tmp_path / "net")
    torch.testing.assert_close(calibrant.Trained.load(tmp_path / "net", make()).probs(inputs), probs)
    if "weight norm" not in case:  # torch pickles no parametrized layers
        assert torch.equal(pickle.loads(pickle.dumps(result)).probs(inputs), probs)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="eager")])
def test_a_wrapper_is_removed(wrap):
    result = calibrant.fit(wrap(perceptron()), rows(), rows(24, 1), epochs=1, networks=1)
    assert type(result.modules[0]) is nn.Sequential
    assert "0.weight" in result.modules[0].state_dict()


def test_sparse_embeddings_can_be_differentiated_twice():
    method = calibrant.methods.BO4SC(steps=2, epochs=2)
    result = calibrant.fit(Tokens(), tokens(48, 0), tokens(24, 1), method=method)
    assert result.modules[0].embed.sparse
    assert result.probs(tokens(10, 2)[0]).isfinite().all()


def test_random_numbers_of_the_user_are_kept():
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, CLASSES))
    before = torch.get_rng_state()
    calibrant.fit(model, rows(), rows(24, 1), method="bo4sc", epochs=2)
    assert torch.equal(before, torch.get_rng_state())


class AlwaysRandom(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x)


@pytest.mark.filterwarnings("ignore:The model gives different outputs")
def test_networks_that_are_random_in_evaluation_keep_them_too():
    model = nn.Sequential(nn.Linear(6, 8), AlwaysRandom(), nn.Linear(8, CLASSES))
    before = torch.get_rng_state()
    calibrant.fit(model, rows(), rows(24, 1), epochs=1, networks=1)
    assert torch.equal(before, torch.get_rng_state())


def test_a_lazy_network_cannot_be_loaded_into(tmp_path):
    calibrant.fit(perceptron(), rows(), rows(24, 1), epochs=1, networks=1).save(tmp_path / "net")
    with pytest.raises(ValueError, match="lazy layers"):
        calibrant.Trained.load(tmp_path / "net", lazy())


def test_old_weight_norm_is_never_taken_for_a_new_network():
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, CLASSES))
    assert not is_untrained(model)
    lstm = nn.LSTM(3, 4, bidirectional=True)
    assert is_untrained(lstm)
    assert not is_untrained(nn.utils.spectral_norm(lstm, "weight_hh_l0_reverse"))


@pytest.mark.parametrize("name", ["ce", "flg-sece", "focal-control", "recommended", "weights", "mdca"])
def test_methods_of_the_second_paper_by_name(name):
    torch.manual_seed(0)
    result = calibrant.fit(perceptron(), rows(), rows(24, 1), method=name, epochs=2, learning_rate=0.01)
    assert result.probs(rows()[0]).isfinite().all()


def test_recommended_in_bfloat16_and_with_a_loader_of_unknown_length():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(*rows(24, 1), strict=True))

    result = calibrant.fit(
        perceptron().bfloat16(), rows(), DataLoader(Stream(), 8), method="recommended", epochs=2, learning_rate=0.01
    )
    assert result.probs(rows()[0]).isfinite().all()


def lazy():
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, CLASSES))


class Scores(nn.Module):
    """Returns a mapping without logits."""

    def __init__(self):
        super().__init__()
        self.net = perceptron()

    def forward(self, x):
        return {"scores": self.net(x)}


REFUSED = {
    "meta": (lambda: nn.Linear(4, 3, device="meta"), r"must have values; got parameters on the device \"meta\""),
    "lazy layers": (lazy, r"lazy layers without parameters \(0.weight, 0.bias, 1.weight, …\). Call it once"),
    "half precision": (lambda: perceptron().half(), r"got float16 for '0.weight'.*model.float\(\)"),
    "a script": (lambda: torch.jit.script(perceptron()), "got a ScriptModule"),
    "a class": (lambda: Two, "Pass an instance of the class"),
    "one output": (lambda: perceptron(1), r"got \(2, 1\) for two samples of train. For two classes"),
    "another mapping": (Scores, "got dict with 'scores'"),
    "other inputs": (lambda: nn.Conv2d(1, 3, 2), r"cannot process two samples of train \(float32 of shape \(2, 6\)\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_with_a_model_is_a_sentence(case):
    make, sentence = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=sentence):
        calibrant.fit(make(), rows(), rows(24, 1), epochs=1)


WARNED = {
    "a sigmoid": (lambda: nn.Sequential(perceptron(), nn.Sigmoid()), "ends in a sigmoid"),
    "randomness": (Random, "different outputs for the same inputs in evaluation mode"),
    "too many outputs": (lambda: perceptron(7), "has 7 outputs, but only 3 of these classes occur"),
}


@pytest.mark.parametrize("case", WARNED)
def test_warnings_about_a_model(case):
    make, sentence = WARNED[case]
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=sentence):
        calibrant.fit(make(), rows(), rows(24, 1), epochs=1, networks=1)


def test_methods_that_cannot_train_a_network_say_why():
    with pytest.raises(ValueError, match=r"trains its networks together.*setup_context.*Use another method"):
        calibrant.fit(OwnFunction(), rows(), rows(24, 1), method="self-calibrated")
    with pytest.raises(ValueError, match="Gradient checkpointing cannot be combined with BO4SC"):
        calibrant.fit(Checkpointed(), rows(), rows(24, 1), method=calibrant.methods.BO4SC(steps=2, epochs=2))
