"""Streams of batches from loaders: the same batches again, in every form, without other random numbers."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from calibrant.bilevel import (
    Bilevel,
    LabelSmoothing,
    OuterVariables,
    SampleWeights,
)
from calibrant.data import Indexed, LoaderStream, TensorStream, as_stream
from tests.data.stream_cases import SIZE, X, Y, same

INDEX = torch.arange(SIZE).flip(0)


@pytest.mark.parametrize(
    ("item", "index"),
    [
        ((X, Y), None),
        ([X, Y], None),
        ((X, Y, INDEX), INDEX),
        ([X, Y, INDEX], INDEX),
        ({"inputs": X, "targets": Y}, None),
        ({"inputs": X, "targets": Y, "index": INDEX, "path": "ignored"}, INDEX),
    ],
    ids=["2-tuple", "2-list", "3-tuple", "3-list", "mapping", "indexed mapping"],
)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_forms_of_a_loaders_batch(item, index, device):
    batch = LoaderStream([item], device=device).batch(0)
    assert torch.equal(batch.inputs, X)
    assert torch.equal(batch.targets, Y)
    assert batch.index is None if index is None else torch.equal(batch.index, index)


def test_labels_that_are_not_tensors_are_converted_in_every_epoch():
    stream = LoaderStream([(X, Y.numpy())], n_classes=3)
    assert all(torch.equal(stream.batch(epoch).targets, Y) for epoch in range(3))


class Noisy(Dataset):
    """Augments with torch's global random numbers, as torchvision's transforms do."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return X[index] + torch.randn(2, dtype=torch.float64), Y[index]


STATES = itertools.count()  # no two loaders are handed over in the same state
LOADERS = {
    "shuffled": lambda: DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True),
    "shuffled by its own generator": lambda: DataLoader(
        TensorDataset(X, Y), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(next(STATES))
    ),
    "augmenting": lambda: DataLoader(Noisy(), batch_size=5, shuffle=True),
    "in order": lambda: DataLoader(TensorDataset(X, Y), batch_size=5),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_two_streams_with_one_seed_are_the_same(make):
    first, second = (LoaderStream(make(), seed=3) for _ in range(2))
    batches = []
    for step in range(12):
        batches.append(first.batch(step))
        torch.randn(3)  # what else happens in the run must not matter
    torch.manual_seed(1234)
    assert same(second.batch(11), batches[11])  # as a resumed run asks
    assert all(same(second.batch(t), batches[t]) for t in reversed(range(12)))


@pytest.mark.parametrize("make", [LOADERS["shuffled"], LOADERS["augmenting"]])
def test_streams_differ_between_epochs_and_seeds(make):
    stream = LoaderStream(make(), seed=3)
    assert not torch.equal(stream.batch(0).inputs, stream.batch(5).inputs)
    assert not torch.equal(LoaderStream(make(), seed=4).batch(0).inputs, stream.batch(0).inputs)


def test_loaders_leave_the_global_random_numbers_alone():
    before = torch.get_rng_state()
    LoaderStream(LOADERS["augmenting"]()).batch(8)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_of_a_loader_has_each_sample_once():
    stream = LoaderStream(LOADERS["shuffled"]())
    for epoch in range(3):
        seen = torch.cat([stream.batch(5 * epoch + t).inputs[:, 0] for t in range(5)])
        assert sorted(seen.tolist()) == list(range(SIZE))


def test_released_batches_are_gone_and_the_others_stay():
    stream = LoaderStream(LOADERS["shuffled"]())
    kept = [stream.batch(t) for t in range(8)]
    stream.release(5)
    assert all(stream.batch(t) is kept[t] for t in (5, 6, 7))
    with pytest.raises(ValueError, match="batch of step 4 was released"):
        stream.batch(4)
    assert len(stream.batch(8).inputs) == 5


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_a_new_run_gets_the_same_batches_again(make):
    stream = LoaderStream(make(), seed=3)
    before = [stream.batch(t) for t in range(8)]
    stream.release(8)
    stream.rewind()
    assert all(same(stream.batch(t), before[t]) for t in range(8))


def test_a_loader_that_runs_once_cannot_begin_again():
    stream = LoaderStream(iter([(X[:5], Y[:5]), (X[5:10], Y[5:10])]))
    stream.batch(1)
    stream.release(1)
    with pytest.raises(ValueError, match="got an iterator"):
        stream.rewind()


def test_loaders_in_another_precision_are_converted():
    item = ({"x": X.float(), "tokens": Y}, Y)
    batch = as_stream([item], dtype=torch.float64).batch(0)
    assert batch.inputs["x"].dtype == torch.float64
    assert batch.inputs["tokens"].dtype == Y.dtype


@pytest.mark.parametrize("settings", [{"batch_size": 5}, {"hyper": {"a": torch.ones(())}}], ids=["size", "constants"])
def test_settings_of_a_stream_belong_to_it(settings):
    with pytest.raises(ValueError, match="set them on the Stream"):
        as_stream(TensorStream(X, Y), **settings)


def test_indexed_data_sets_say_which_sample_is_which():
    indexed = Indexed(TensorDataset(X, Y))
    assert len(indexed) == SIZE
    stream = LoaderStream(DataLoader(indexed, batch_size=5, shuffle=True))
    for step in range(7):
        batch = stream.batch(step)
        assert torch.equal(batch.inputs, X[batch.index])
        assert torch.equal(batch.targets, Y[batch.index])


def test_per_sample_variables_need_an_index():
    model = nn.Linear(2, 3).double()
    plain, indexed = (DataLoader(d, batch_size=5) for d in (TensorDataset(X, Y), Indexed(TensorDataset(X, Y))))
    both = OuterVariables(SampleWeights(SIZE), LabelSmoothing(3, per="class"))
    with pytest.raises(ValueError, match=r"OuterVariables .*wrap the data set in calibrant\.data\.Indexed"):
        Bilevel(model, both, train=plain)
    Bilevel(model, both, train=indexed)
    Bilevel(model, LabelSmoothing(3, per="class"), train=plain)  # belongs to classes, not to samples
