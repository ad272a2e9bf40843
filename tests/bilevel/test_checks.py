"""Tests of checks before training: mistakes that would give wrong numbers raise errors."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.bilevel import (
    SGD,
    Bilevel,
    Direct,
    Implicit,
    LabelSmoothing,
    NonFiniteError,
    OneStep,
    OuterVariables,
    Plain,
    Population,
    SampleWeights,
    Unrolled,
    add_prior,
    solve,
)
from calibrant.data import Indexed, TensorStream
from tests.bilevel.loop_cases import CLASSES, SAMPLES, blobs, mlp, problem, run


@pytest.mark.parametrize("steps", [1, 3])
def test_bad_training_data_is_blamed_on_the_inner_loss(steps):
    x, y = blobs()
    x[4, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"inner loss was not finite at inner step 1 \(outer step 1\)"):
        run(problem(train=(x, y)), hypergradient=OneStep(steps))


@pytest.mark.parametrize("batch_size", [None, 6])
@pytest.mark.parametrize(
    "outer",
    [
        lambda: SampleWeights(SAMPLES + 1),
        lambda: SampleWeights(SAMPLES - 1),
        lambda: LabelSmoothing(SAMPLES + 5),
        lambda: OuterVariables(SampleWeights(SAMPLES), LabelSmoothing(SAMPLES + 5)),
    ],
)
def test_variables_of_samples_must_be_as_many_as_the_samples(outer, batch_size):
    with pytest.raises(ValueError, match="must be made for the 20 samples"):
        problem(outer=outer(), batch_size=batch_size)


def test_loaders_folds_and_replicas_know_their_samples():
    x, y = blobs()
    loader = DataLoader(Indexed(TensorDataset(x, y)), batch_size=5)
    with pytest.raises(ValueError, match="made for the 20 samples of the training set; got 21"):
        problem(outer=SampleWeights(21), train=loader)
    fold = TensorStream(x[:8], y[:8], index=torch.arange(12, 20), batch_size=4)
    problem(outer=SampleWeights(20), train=fold)
    with pytest.raises(ValueError, match=r"must be below 19.*; got 19"):
        problem(outer=SampleWeights(19), train=fold)
    with pytest.raises(ValueError, match="made for the 8 samples of the training set; got 20"):
        problem(batch_size=4).replicate(train=(x[:8], y[:8]))


def test_an_inner_loss_without_the_network_is_refused():
    def constant(net, outer, batch):
        return outer.weigh(F.cross_entropy(net(batch.inputs).detach(), batch.targets, reduction="none"), batch)

    with pytest.raises(ValueError, match="does not depend on the network's parameters"):
        run(problem(inner_loss=constant))
    with pytest.raises(ValueError, match="does not depend on the network's parameters"):
        run(problem(inner_loss=constant), hypergradient=Plain(3), outer_optimizer=None)


def unweighted(net, outer, batch):
    return F.cross_entropy(net(batch.inputs), batch.targets)


@pytest.mark.parametrize("many", [False, True])
def test_an_inner_loss_without_the_outer_variables_is_noticed(many):
    first = problem(inner_loss=unweighted)
    with pytest.raises(ValueError, match="occur neither in the inner nor in the outer loss"):
        run(Population([first, first.replicate(seed=1)]) if many else first)

    def with_prior(net, outer, batch):
        return add_prior(F.cross_entropy(net(batch.inputs), batch.targets), outer)

    prior = SampleWeights(SAMPLES, initial_weight=0.7, prior_strength=1.0)
    with pytest.warns(UserWarning, match="does not depend on the outer variables"):
        run(problem(inner_loss=unweighted, outer=prior, outer_loss=with_prior))


@pytest.mark.filterwarnings("error")
def test_fixed_outer_variables_need_not_occur():
    run(problem(inner_loss=unweighted), hypergradient=Plain(2), outer_optimizer=None)
    run(problem())


def test_batch_norm_is_trained_on_any_number_of_samples():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, CLASSES)).double()
    x, y = blobs(samples=13)
    case = Bilevel(model, SampleWeights(13, initial_weight=0.7), train=(x, y), val=(x, y), batch_size=4)
    assert run(case).buffers["1.running_var"].isfinite().all()
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    with pytest.raises(ValueError, match="drop_last=True"):
        solve(Bilevel(model, train=loader), hypergradient=Plain(4), inner_optimizer=SGD(0.1), outer_steps=1)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells, self.head = kind(2, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_population_of_recurrent_networks_says_that_it_cannot_be(kind):
    x, y = blobs()
    sequences = torch.stack([x, x + 1, x - 1], 1)
    first = problem(Recurrent(kind).double(), train=(sequences, y), val=(sequences, y))
    with pytest.raises(ValueError, match=r"aten::\w+, which torch.func.vmap cannot vectorise.*one by one"):
        run(Population([first, first.replicate(seed=1)]))


def accuracy(net, outer, batch):
    """It cannot be differentiated; only the prior moves φ."""
    return add_prior((net(batch.inputs).argmax(-1) != batch.targets).double().mean(), outer)


@pytest.mark.parametrize("compile", [None, "trace"])
@pytest.mark.parametrize("many", [False, True])
def test_an_outer_loss_without_derivative_in_the_network(many, compile):
    weights = SampleWeights(SAMPLES, form="sigmoid", initial_weight=0.7, prior_strength=1.0)
    case = problem(outer=weights, outer_loss=accuracy)
    with pytest.warns(UserWarning, match=r"outer loss has no derivative in the network's parameters.*accuracy"):
        run(Population([case, case.replicate(seed=1)]) if many else case, compile=compile)


@pytest.mark.parametrize("kind", [OneStep(scope="head"), Implicit(scope="head")])
def test_the_head_needs_an_outer_loss_with_a_derivative_too(kind):
    weights = SampleWeights(SAMPLES, form="sigmoid", initial_weight=0.7, prior_strength=1.0)
    with pytest.warns(UserWarning, match="outer loss has no derivative in the network's parameters"):
        run(problem(outer=weights, outer_loss=accuracy), hypergradient=kind)


@pytest.mark.filterwarnings("error")
def test_a_direct_gradient_needs_no_derivative_in_the_network():
    def mapped(net, outer, batch):
        return F.cross_entropy(net(batch.inputs).detach() * outer.factor, batch.targets)

    def inner(net, outer, batch):
        return F.cross_entropy(net(batch.inputs), batch.targets)

    outer = nn.ParameterDict({"factor": torch.tensor(1.5, dtype=torch.float64)})
    run(problem(outer=outer, inner_loss=inner, outer_loss=mapped), hypergradient=Direct(2))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 4), nn.Linear(4, CLASSES)
        self.block = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.head(self.block(self.embed(x.unsqueeze(-1))).mean(1))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_population_of_transformers_equals_its_single_runs():
    """In evaluation mode their layers have a fast path without a derivative, which vmap would take."""
    torch.manual_seed(0)
    first = problem(Encoder().double())
    members = [first, first.replicate(first.start + 0.1, seed=1)]
    fast = torch.backends.mha.get_fastpath_enabled()
    together = run(Population(members), outer_steps=2)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    for k, member in enumerate(members):
        torch.testing.assert_close(together.member(k).phi, run(member, outer_steps=2).phi)


def of_positive(net, outer, batch):
    losses = outer.weigh(F.cross_entropy(net(batch.inputs), batch.targets, reduction="none"), batch)
    return losses[batch.inputs[:, 0] > 0].mean() + losses.mean()


def by_condition(net, outer, batch):
    losses = outer.weigh(F.cross_entropy(net(batch.inputs), batch.targets, reduction="none"), batch)
    return losses if net(batch.inputs).sum() > 0 else 2 * losses


@pytest.mark.parametrize("loss", [of_positive, by_condition])
def test_a_population_says_that_a_loss_cannot_be_vectorised(loss):
    first = problem(inner_loss=loss, batch_size=8)
    run(first)
    with pytest.raises(ValueError, match=r"reads values of tensors, which torch\.func\.vmap.*one by one"):
        run(Population([first, first.replicate(seed=1)]))


class Gated(nn.Sequential):
    def forward(self, x):
        return self[1](F.hardsigmoid(self[0](x)))


@pytest.mark.parametrize("compile", [None, "trace"])
def test_an_operation_without_a_second_derivative_is_named(compile):
    torch.manual_seed(0)
    case = problem(Gated(nn.Linear(2, 4), nn.Linear(4, CLASSES)).double())
    with pytest.raises(NotImplementedError, match=r"uses hardsigmoid, which has no second derivative.*scope='head'"):
        run(case, compile=compile)
    run(case, hypergradient=OneStep(scope="head"))


def numpy_noise(net, outer, batch):
    """Mixup by NumPy's global generator."""
    share = np.random.beta(1.0, 1.0)  # noqa: NPY002
    return F.cross_entropy(net(share * batch.inputs + (1 - share) * batch.inputs.flip(0)), batch.targets)


def python_noise(net, outer, batch):
    return (1 + random.random()) * F.cross_entropy(net(batch.inputs), batch.targets)


OWN = torch.Generator().manual_seed(0)


def own_noise(net, outer, batch):
    inputs = batch.inputs + 0.1 * torch.randn(batch.inputs.shape, generator=OWN, dtype=batch.inputs.dtype)
    return F.cross_entropy(net(inputs), batch.targets)


FOREIGN = pytest.mark.parametrize("loss", [numpy_noise, python_noise, own_noise])


@FOREIGN
def test_inner_losses_that_cannot_be_replayed_are_refused(loss):
    with pytest.raises(
        ValueError, match=r"The inner loss gave two different values.*NumPy, random or its own Generator"
    ):
        problem(inner_loss=loss)


@FOREIGN
def test_outer_losses_that_cannot_be_replayed_are_refused(loss):
    with pytest.raises(ValueError, match="The outer loss gave two different values"):
        run(problem(outer_loss=loss))


@pytest.mark.parametrize("draw", [lambda: np.random.normal(), lambda: torch.randn(())])  # noqa: NPY002
def test_an_augmentation_must_use_its_generator(draw):
    x, y = blobs()
    model, before = mlp(), torch.get_rng_state()
    with pytest.raises(ValueError, match="all its random numbers from the generator"):
        problem(model, train=TensorStream(x, y, augment=lambda inputs, generator: inputs + draw()))
    with pytest.raises(ValueError, match="all its random numbers from the generator"):
        problem(model, train=TensorStream(x, y, augment_batch=lambda inputs, targets, g: (inputs + draw(), targets)))
    assert torch.equal(torch.get_rng_state(), before)
    x[0] = float("nan")
    problem(train=TensorStream(x, y, augment=lambda inputs, generator: 2 * inputs))


def test_checking_leaves_all_global_generators_as_they_were():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    def drawing(net, outer, batch):
        random.random(), np.random.normal(), torch.rand(1)  # noqa: NPY002
        return outer.weigh(F.cross_entropy(net(batch.inputs), batch.targets, reduction="none"), batch)

    model, before = mlp(), states()
    case = problem(model, inner_loss=drawing, outer_loss=drawing)
    case.val_batch(0)
    case.depends("outer")
    assert states() == before


def test_nothing_is_evaluated_again_for_replicas():
    calls = []

    def counting(net, outer, batch):
        calls.append(1)
        return outer.weigh(F.cross_entropy(net(batch.inputs), batch.targets, reduction="none"), batch)

    case = problem(inner_loss=counting, outer_loss=counting)
    case.val_batch(0)
    calls.clear()
    twin = case.replicate(seed=3)
    twin.train_batch(0)
    twin.val_batch(0)
    twin.depends("inner")
    assert not calls


def noisy_outer(net, outer, batch):
    noise = torch.randn(batch.inputs.shape, dtype=batch.inputs.dtype)
    return F.cross_entropy(net(batch.inputs + noise), batch.targets)


def test_a_random_outer_loss_is_seeded_step_by_step():
    """Two runs are equal for any state of the global generator, and steps have different numbers."""
    found = []
    for seed in (1, 2):
        case = problem(outer_loss=noisy_outer)
        torch.manual_seed(seed)
        found.append(run(case))
    assert torch.equal(found[0].phi, found[1].phi)
    assert case.val_batch(0).seed != case.val_batch(1).seed
    with pytest.raises(ValueError, match="draws random numbers"):
        run(Population([case, case.replicate(seed=1)]))


def test_bad_data_is_not_taken_for_randomness():
    x, y = blobs()
    x[0] = float("nan")
    problem(train=(x, y), val=(x, y)).val_batch(0)


@pytest.mark.parametrize("loss", [None, lambda net, outer, batch: F.cross_entropy(net(batch.inputs), batch.targets)])
def test_a_network_that_ends_in_a_softmax_is_noticed(loss):
    data = {"train": blobs(), "val": blobs(1), "inner_loss": loss}
    with pytest.warns(UserWarning, match="already a probability distribution"):
        Bilevel(nn.Sequential(mlp(), nn.Softmax(1)), **data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Bilevel(mlp(), **data)
        Bilevel(nn.Sequential(mlp(), nn.LogSoftmax(1)), **data)
        takes_probabilities = {
            "inner_loss": lambda net, outer, batch: F.nll_loss(net(batch.inputs).log(), batch.targets)
        }
        Bilevel(nn.Sequential(mlp(), nn.Softmax(1)), **data | takes_probabilities)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(2), nn.InstanceNorm1d(2, track_running_stats=True)])
def test_running_statistics_in_the_outer_module_are_refused(layer):
    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.last = layer, nn.Linear(2, 1)

        def forward(self, inputs):
            return torch.sigmoid(self.last(self.norm(inputs))).squeeze(-1)

    def loss(net, outer, batch):
        return outer(batch.inputs) * F.cross_entropy(net(batch.inputs), batch.targets, reduction="none")

    with pytest.raises(ValueError, match=r"'norm'.*never be updated. Use LayerNorm, or call eval"):
        problem(outer=Scores(), inner_loss=loss)
    scores = Scores()
    scores.norm.eval()
    if isinstance(layer, nn.BatchNorm1d):
        run(problem(outer=scores, inner_loss=loss), hypergradient=Unrolled(2))


LOSSES = {
    "two arguments": (lambda net, batch: 0.0, r"got <lambda>\(net, batch\), which cannot be called with three"),
    "a function of torch": (torch.nn.functional.cross_entropy, r"got torch's cross_entropy\. For a loss of logits"),
    "a module of torch": (torch.nn.CrossEntropyLoss(), r"got torch's CrossEntropyLoss\. For a loss of logits"),
    "a name": ("cross-entropy", "got 'cross-entropy'"),
}


@pytest.mark.parametrize(("name", "wrapper"), [("inner_loss", "composed"), ("outer_loss", "averaged")])
@pytest.mark.parametrize("case", LOSSES)
def test_losses_of_another_form_are_refused(case, name, wrapper):
    loss, words = LOSSES[case]
    x, y = torch.randn(6, 2), torch.tensor([0, 1] * 3)
    with pytest.raises(TypeError, match=f"{name} must be a function of .net, outer, batch.; {words}"):
        Bilevel(torch.nn.Linear(2, 2), SampleWeights(6), train=(x, y), val=(x, y), **{name: loss})
    if case == "a function of torch":
        wrapped = getattr(calibrant.bilevel, wrapper)(lambda z, t: loss(z, t, reduction="none"))
        Bilevel(torch.nn.Linear(2, 2), SampleWeights(6), train=(x, y), val=(x, y), **{name: wrapped})


def test_model_and_outer_must_be_modules():
    x, y = torch.randn(6, 2), torch.tensor([0, 1] * 3)
    with pytest.raises(TypeError, match=r"outer must be an nn\.Module, .*; got a Tensor\. .*ParameterDict"):
        Bilevel(torch.nn.Linear(2, 2), torch.zeros(6), train=(x, y), val=(x, y))
    with pytest.raises(TypeError, match=r"model must be an nn\.Module; got 'net'"):
        Bilevel("net", train=(x, y))


def test_a_parameter_dictionary_can_be_the_outer_module():
    x, y = torch.randn(6, 2), torch.tensor([0, 1] * 3)

    def inner(net, outer, batch):
        losses = torch.nn.functional.cross_entropy(net(batch.inputs), batch.targets, reduction="none")
        return outer["scale"].exp() * losses

    outer = torch.nn.ParameterDict({"scale": torch.tensor(0.5)})
    problem = Bilevel(torch.nn.Linear(2, 2), outer, inner_loss=inner, train=(x, y), val=(x, y))
    solution = solve(
        problem, hypergradient=Unrolled(2), inner_optimizer=SGD(0.1), outer_optimizer=SGD(0.1), outer_steps=1
    )
    assert solution.outer_variables()["scale"] != 0.5
    assert repr(solution).startswith("Solution(6 parameters and 1 outer variable; 1 outer step in ")
