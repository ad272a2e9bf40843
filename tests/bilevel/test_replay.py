"""Replayed steps: the sweep sees the same batches, dropout masks, augmentation and statistics."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from calibrant.bilevel import SGD, Adam, Unrolled
from calibrant.data import Indexed, TensorStream
from tests.bilevel.loop_cases import CLASSES, SAMPLES, blobs, hidden_dropout, problem, rich_mlp, run


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(2, 6), nn.Dropout(0.3), nn.Linear(6, CLASSES)

    def forward(self, left, *, right):
        return self.last(self.drop(torch.tanh(self.first(left) - self.first(right))))


class Pairs(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x, y = blobs()
        return {"left": x[index], "right": 0.5 * x[index]}, y[index]


def pairs_loss(net, outer, batch):
    logits = net(batch.inputs["left"], right=batch.inputs["right"])
    return outer.weigh(F.cross_entropy(logits, batch.targets, reduction="none"), batch)


def two_calls(net, outer, batch):
    """A consistency term on part of the batch: a second call of another size, with other masks."""
    losses = F.cross_entropy(net(batch.inputs), batch.targets, reduction="none")
    return outer.weigh(losses, batch).mean() + 0.1 * net(batch.inputs[:7]).square().mean()


def pairs_case():
    torch.manual_seed(0)
    train, val = (DataLoader(Indexed(Pairs()), batch_size=n) for n in (10, 20))
    return problem(TwoInputs().double(), train=train, val=val, inner_loss=pairs_loss, outer_loss=pairs_loss)


@pytest.mark.parametrize(
    "make", [pairs_case, lambda: problem(rich_mlp(), inner_loss=two_calls)], ids=["several inputs", "several calls"]
)
def test_losses_may_call_a_network_with_dropout_as_they_like(make):
    kept = run(make(), hypergradient=Unrolled(4, memory="graphs"))
    recomputed = run(make(), hypergradient=Unrolled(4, memory="checkpoints"))
    traced = run(make(), compile="trace")
    for other in (recomputed, traced):
        assert torch.allclose(kept.phi, other.phi, rtol=0, atol=1e-10)
        assert torch.allclose(kept.params, other.params, rtol=0, atol=1e-10)
    assert kept.phi.std() > 0


def test_each_call_of_a_network_has_its_own_masks():
    seen = []

    def loss(net, outer, batch):
        seen.append([net(batch.inputs), net(batch.inputs)])
        return outer.weigh(F.cross_entropy(seen[-1][0] + seen[-1][1], batch.targets, reduction="none"), batch)

    model = nn.Sequential(nn.Linear(2, 6), nn.Dropout(0.5), nn.Linear(6, CLASSES)).double()
    case = problem(model, inner_loss=loss)
    point = case.view.initial(), {}, case.initial_phi()
    for step in (3, 3, 4):
        case.inner(*point, case.train_batch(step))
    first, again, other = seen[-3:]
    assert not torch.equal(first[0], first[1])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def jitter(inputs, generator):
    return inputs + 0.1 * torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)


@pytest.mark.parametrize("make", [rich_mlp, hidden_dropout])
@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), Adam(0.02)], ids=["momentum", "adam"])
def test_the_sweep_replays_batches_masks_augmentation_and_statistics(make, optimizer):
    ends = []
    for memory in ("graphs", "checkpoints"):
        stream = TensorStream(*blobs(), batch_size=7, augment=jitter, seed=3)
        case = problem(make(), train=stream)
        torch.manual_seed(len(ends))  # the global generator must not matter
        ends.append(run(case, hypergradient=Unrolled(7, memory=memory), inner_optimizer=optimizer))
    kept, lean = ends
    assert not torch.equal(kept.phi, case.initial_phi())
    assert torch.equal(lean.params, kept.params)
    assert torch.equal(lean.phi, kept.phi)
    assert all(torch.equal(b, kept.buffers[k]) for k, b in lean.buffers.items())


def test_the_global_generator_is_left_as_it_was():
    case = problem(hidden_dropout(), batch_size=7)
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    run(case)
    run(case, compile="trace")
    assert torch.equal(torch.rand(3), expected)


class Attending(nn.Module):
    """A transformer layer, which uses fused attention kernels."""

    def __init__(self, dropout):
        super().__init__()
        self.embed, self.last = nn.Linear(1, 4), nn.Linear(8, CLASSES)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout, batch_first=True)

    def forward(self, x):
        return self.last(self.layer(self.embed(x.unsqueeze(-1))).flatten(1))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_transformers_can_be_differentiated_twice(dropout):
    ends = []
    for memory in ("graphs", "checkpoints"):
        torch.manual_seed(0)
        case = problem(Attending(dropout).double(), batch_size=7)
        ends.append(run(case, hypergradient=Unrolled(3, memory=memory), outer_steps=2))
    assert torch.equal(ends[0].phi, ends[1].phi)
    assert not torch.equal(ends[0].phi, case.initial_phi())
