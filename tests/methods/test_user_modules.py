"""``calibrant.fit`` on modules as users write them: wrapped, compiled, caching, with unusual layers and arguments."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import calibrant
from calibrant.methods.fit.untrained import is_untrained
from tests.methods.test_module_kinds import CLASSES, lazy, perceptron, rows


class Random(nn.Module):
    """Dropout that is not switched off in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.net = perceptron()

    def forward(self, x):
        return self.net(F.dropout(x, 0.5, training=True))


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="eager")])
def test_a_wrapper_is_removed(wrap):
    result = calibrant.fit(wrap(perceptron()), rows(), rows(24, 1), epochs=1, networks=1)
    assert type(result.modules[0]) is nn.Sequential
    assert "0.weight" in result.modules[0].state_dict()


class AlwaysRandom(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x)


@pytest.mark.filterwarnings("ignore:The model gives different outputs")
@pytest.mark.parametrize(("layer", "how"), [(nn.Dropout(), {"method": "bo4sc"}), (AlwaysRandom(), {"networks": 1})])
def test_random_numbers_of_the_user_are_kept(layer, how):
    model = nn.Sequential(nn.Linear(6, 8), layer, nn.Linear(8, CLASSES))
    before = torch.get_rng_state()
    calibrant.fit(model, rows(), rows(24, 1), epochs=2, **how)
    assert torch.equal(before, torch.get_rng_state())


def test_a_lazy_network_cannot_be_loaded_into(tmp_path):
    calibrant.fit(perceptron(), rows(), rows(24, 1), epochs=1, networks=1).save(tmp_path / "net")
    with pytest.raises(ValueError, match="lazy layers"):
        calibrant.Trained.load(tmp_path / "net", nn.LazyLinear(CLASSES))


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


class Scores(nn.Module):
    """Returns a mapping without logits."""

    def __init__(self):
        super().__init__()
        self.net = perceptron()

    def forward(self, x):
        return {"scores": self.net(x)}


REFUSED = {
    "meta": (lambda: nn.Linear(4, 3, device="meta"), r"must have values; got parameters on the device \"meta\""),
    "lazy layers": (lambda: lazy(called=False), r"parameters \(0.weight, 0.bias, 1.weight, …\). Call it once"),
    "half precision": (lambda: perceptron().half(), r"got float16 for '0.weight'.*model.float\(\)"),
    "a script": (lambda: torch.jit.script(perceptron()), "got a ScriptModule"),
    "a class": (lambda: nn.Linear, "Pass an instance of the class"),
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
