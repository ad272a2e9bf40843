"""Tests of loaders: all forms of batches, and resuming without reading everything again."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from calibrant.data import Indexed, LoaderStream, TensorStream
from calibrant.data.streams.batch_formats import BatchFormat
from calibrant.data.streams.population_stream import MemberStream

SIZE = 23
X = torch.arange(SIZE, dtype=torch.float32)[:, None] * torch.tensor([1.0, 10.0])
Y = torch.arange(SIZE) % 3


class Counted(Dataset):
    """Counts the samples that are read, and augments with torch's random numbers."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return SIZE

    def __getitem__(self, row):
        self.reads += 1
        return X[row] + torch.randn(2), Y[row]


def counted(**settings):
    data = Counted()
    return data, DataLoader(data, batch_size=5, shuffle=True, **settings)


def test_a_resumed_stream_reads_only_what_it_needs():
    """A thousand batches lie behind: whole epochs are skipped, and so are the samples of the present one."""
    _, loader = counted()
    whole = LoaderStream(loader, seed=3)
    for step in range(40):
        expected = whole.batch(step)
    for before in (39, 38, 37, 36, 35):  # at each place of an epoch
        data, loader = counted()
        resumed = LoaderStream(loader, seed=3)
        resumed.batch(0)  # as a problem does when it is made
        resumed.rewind()
        resumed.release(before)
        assert torch.equal(resumed.batch(39).inputs, expected.inputs)
        assert data.reads == 5 + sum(3 if step % 5 == 4 else 5 for step in range(before, 40))


class Counting:
    """An iterable with a length, which counts the batches that it gives."""

    def __init__(self):
        self.given = 0

    def __len__(self):
        return 4

    def __iter__(self):
        for k in range(4):
            self.given += 1
            yield X[5 * k : 5 * k + 5] + torch.randn(1), Y[5 * k : 5 * k + 5]


def test_other_iterables_skip_whole_epochs():
    whole, loader = LoaderStream(Counting(), seed=3), Counting()
    resumed = LoaderStream(loader, seed=3)
    resumed.release(402)
    assert torch.equal(resumed.batch(402).inputs, [whole.batch(t) for t in range(403)][-1].inputs)
    assert loader.given == 3


class Endless(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def test_data_without_a_length_are_counted_once_or_reported():
    loader = DataLoader(Endless(), batch_size=5)
    before = torch.get_rng_state()
    assert LoaderStream(loader).batches == 5
    assert torch.equal(torch.get_rng_state(), before)
    assert LoaderStream(loader, batches=1000).batches == 1000
    assert LoaderStream(iter(loader)).batches == 1


class Dicts(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, row):
        return {"ids": X[row].long(), "mask": X[row] > 0, "label": Y[row], "text": str(row)}


def test_mappings_are_inputs_by_name():
    batch = LoaderStream(DataLoader(Indexed(Dicts()), batch_size=5), device="cpu").batch(1)
    assert set(batch.inputs) == {"ids", "mask"}
    assert torch.equal(batch.inputs["ids"], X[5:10].long())
    assert torch.equal(batch.targets, Y[5:10])
    assert batch.index.tolist() == [5, 6, 7, 8, 9]
    assert set(
        LoaderStream(DataLoader(Dicts()), batch_format=BatchFormat(names=frozenset({"ids", "other"}))).batch(0).inputs
    ) == {"ids"}
    for form, message in (
        (BatchFormat("mask"), None),
        (BatchFormat("kind"), "labels under 'kind'; got"),
        (BatchFormat(names=frozenset({"other"})), "must have tensors besides 'label'"),
    ):
        stream = LoaderStream(DataLoader(Dicts(), batch_size=5), batch_format=form)
        if message is None:
            assert torch.equal(stream.batch(0).targets, X[:5] > 0)
        else:
            with pytest.raises(ValueError, match=message):
                stream.batch(0)


def test_streams_can_be_sent_to_another_process():
    for stream in (
        LoaderStream(DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True), seed=3),
        TensorStream(X, Y, batch_size=5, seed=3),
        MemberStream([TensorStream(X, Y, batch_size=5, seed=s) for s in (1, 2)]),
    ):
        expected = stream.batch(3)
        twin = pickle.loads(pickle.dumps(stream))
        assert torch.equal(twin.batch(3).inputs, expected.inputs)


def bytes_of(inputs):
    return inputs.float() / 2


def doubled(inputs, generator):
    return inputs + torch.randint(0, 9, inputs.shape, generator=generator).to(inputs.dtype)


@pytest.mark.parametrize("size", [None, 5])
@pytest.mark.parametrize("augment", [None, doubled])
def test_stored_bytes_become_the_networks_numbers_batch_by_batch(size, augment):
    stored = X.to(torch.uint8)
    stream = TensorStream(stored, Y, batch_size=size, augment=augment, prepare=bytes_of, seed=2)
    raw = TensorStream(stored, Y, batch_size=size, augment=augment, seed=2)
    for step in (0, 3):
        assert torch.equal(stream.batch(step).inputs, raw.batch(step).inputs.float() / 2)
    assert stream.constant == (size is None and augment is None)
    assert stream.inputs is stored
    assert torch.equal(stream.whole.inputs, stored.float() / 2)
    together = MemberStream([stream, TensorStream(stored, Y, batch_size=size, augment=augment, prepare=bytes_of)])
    assert torch.equal(together.batch(3).inputs[0], stream.batch(3).inputs)


def test_a_batch_that_is_asked_for_twice_is_drawn_once():
    draws = []
    stream = TensorStream(X, Y, batch_size=5, augment=lambda inputs, generator: (draws.append(1), inputs)[1])
    for step in (0, 0, 1, 0):
        stream.batch(step)
    assert len(draws) == 2


def test_inputs_of_several_tensors():
    inputs = {"a": X, "b": Y}
    stream = TensorStream(inputs, Y, batch_size=5, seed=1)
    batch = stream.batch(2)
    assert torch.equal(batch.inputs["a"], X[batch.index])
    assert torch.equal(batch.inputs["b"], Y[batch.index])
    together = MemberStream([stream, TensorStream(inputs, Y, batch_size=5, seed=2)])
    assert torch.equal(together.batch(2).inputs["a"][0], batch.inputs["a"])
    with pytest.raises(ValueError, match="got 23 and 22 rows"):
        TensorStream(inputs, Y[:-1])


class Slow(TensorDataset):
    """Another class than torch's, so that its samples are read one by one."""


@pytest.mark.parametrize("part", [lambda data: data, lambda data: Subset(data, [3, 1, 4, 15, 9, 2, 6, 5])])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_of_a_tensor_dataset_are_those_of_torchs_loader(part, shuffle, monkeypatch):
    def batches(kind):
        stream = LoaderStream(DataLoader(part(kind(X, Y)), batch_size=3, shuffle=shuffle), seed=7)
        return [(batch.inputs, batch.targets) for batch in map(stream.batch, range(2 * stream.batches))]

    expected = batches(Slow)
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, row: pytest.fail("a sample was read alone"))
    torch.testing.assert_close(batches(TensorDataset), expected, rtol=0, atol=0)
