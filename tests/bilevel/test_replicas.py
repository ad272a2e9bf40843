"""Tests of replicas: they equal problems built from scratch, and other changes are refused."""

import pytest
import torch
from torch import nn

from calibrant.bilevel import L2, Population, SampleWeights
from calibrant.data import TensorStream
from calibrant.models.functional.functional_module import FunctionalModule
from tests.bilevel.loop_cases import CLASSES, SAMPLES, blobs, mlp, problem, rich_mlp, run
from tests.bilevel.member_cases import KINDS, MEMBERS, WithConstant, convolutional, frozen, jitter


def replica(first, seed, **kwargs):
    """The problem ``problem(mlp(seed), seed=seed)``, made from another problem."""
    return first.replicate(train=blobs(seed), val=blobs(seed + 100), seed=seed, **kwargs)


REPLICAS = {
    "own data": (KINDS["own data"], lambda first, s: replica(first, s, model=mlp(s))),
    "shared data": (KINDS["shared data"], lambda first, s: first.replicate(mlp(s), seed=s)),
    "mini-batches": (KINDS["mini-batches"], lambda first, s: replica(first, s, model=mlp(s))),
    "batch norm, dropout, mini-batches": (
        KINDS["batch norm, dropout, mini-batches"],
        lambda first, s: replica(first, s, model=rich_mlp(s)),
    ),
    "augmentation": (
        KINDS["augmentation"],
        lambda first, s: first.replicate(
            mlp(s), seed=s, train=TensorStream(*blobs(s), batch_size=8, augment=jitter, seed=s), val=blobs(s + 100)
        ),
    ),
    "constants": (
        KINDS["constants"],
        lambda first, s: replica(first, s, model=mlp(s), hyper={"sharpness": torch.tensor(1.0 + s)}),
    ),
    "outer start": (
        lambda s: problem(mlp(s), seed=s, outer=L2(mlp(), initial=0.01 + s)),
        lambda first, s: replica(first, s, model=mlp(s), outer=L2(mlp(), initial=0.01 + s)),
    ),
    "vectors": (
        lambda s: problem(mlp(s), seed=s, outer=SampleWeights(SAMPLES, initial_weight=0.5 + s / 20)),
        lambda first, s: replica(first, s, model=first.view.draw(s), outer=torch.full((SAMPLES,), 0.5 + s / 20)),
    ),
}


@pytest.mark.parametrize("kind", REPLICAS)
def test_replicas_are_the_problems_that_would_have_been_built(kind):
    build, replicate = REPLICAS[kind]
    built = run(Population([build(seed) for seed in range(MEMBERS)]))
    first = build(7)
    replicas = [replicate(first, seed) for seed in range(MEMBERS)]
    solution = run(Population(replicas))
    assert torch.equal(solution.params, built.params)
    assert torch.equal(solution.phi, built.phi)
    assert all(torch.equal(solution.buffers[k], b) for k, b in built.buffers.items())
    assert torch.equal(run(replicas[2]).params, run(build(2)).params)
    assert torch.equal(run(first).params, run(build(7)).params)  # which stays as it was


def test_replicas_share_what_they_can():
    x, y = blobs(1)
    first = problem(train=(x.float().numpy(), y.numpy()), hyper={"a": torch.ones(2)})
    other = first.replicate(mlp(3), seed=3)
    assert other.view is first.view
    assert other.train.hyper["a"] is first.train.hyper["a"] is other.val.hyper["a"]
    assert other.train.inputs is first.train.inputs  # as converted, not converted again
    assert Population([first, other]).train.axes.inputs is None
    assert first.replicate(mlp(3)).train is first.train
    given = TensorStream(x, y)
    assert problem(train=given).replicate(seed=4).train is given


@pytest.mark.parametrize(
    "build",
    [
        lambda: mlp(5),
        lambda: rich_mlp(5, torch.float32),
        lambda: convolutional(5),
        lambda: (torch.manual_seed(5), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))[1],
    ],
    ids=["mlp", "float32", "convolution", "transformer"],
)
def test_drawn_parameters_equal_those_of_a_new_module(build):
    view = FunctionalModule(build())
    state = torch.get_rng_state()
    drawn, other = view.draw(5), view.draw(6)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(drawn, view.initial())
    assert torch.equal(view.draw(5), drawn)
    assert drawn.dtype == view.initial().dtype
    assert not torch.equal(other, drawn)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.scale


BAD_REPLICAS = {
    "architecture": (lambda: problem().replicate(nn.Linear(2, CLASSES)), "must have the same architecture"),
    "activation": (lambda: problem().replicate(mlp(activation=nn.ReLU)), "settings of its layers"),
    "frozen elsewhere": (lambda: problem().replicate(frozen(0)), "must have the same architecture"),
    "frozen values": (lambda: problem(frozen(0)).replicate(frozen(1)), r"frozen parameter 0\.weight"),
    "vector": (lambda: problem().replicate(torch.zeros(7)), r"vector of 39 numbers; got shape \(7,\)"),
    "outer vector": (lambda: problem().replicate(outer=torch.zeros(7)), "vector of 20 numbers"),
    "outer settings": (lambda: problem().replicate(outer=SampleWeights(SAMPLES, form="sigmoid")), "architecture"),
    "outer constants": (
        lambda: problem(outer=WithConstant(0.0)).replicate(outer=WithConstant(1.0)),
        "since replicas share them",
    ),
    "validation": (lambda: problem(val=None).replicate(val=blobs(3)), "no validation data"),
    "constants of a stream": (
        lambda: problem(train=TensorStream(*blobs())).replicate(hyper={"a": torch.ones(())}),
        "set them on the Stream",
    ),
    "no reset": (lambda: FunctionalModule(Scaled()).draw(0), r"must have reset_parameters\(\)"),
}


@pytest.mark.parametrize("case", BAD_REPLICAS)
def test_other_changes_than_those_of_replicas_are_refused(case):
    make, sentence = BAD_REPLICAS[case]
    with pytest.raises(ValueError, match=sentence):
        make()
