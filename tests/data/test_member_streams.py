"""The batches of many streams as one, with an axis over members."""

from __future__ import annotations

import pytest
import torch

from calibrant.data import Batch, LoaderStream, TensorStream
from calibrant.data.streams.batch import stack
from calibrant.data.streams.population_stream import MemberStream
from tests.data.stream_cases import SIZE, X, Y, numbered, same


def test_stacking_copies_only_what_differs():
    x, y = numbered()
    other, shared = torch.randn(SIZE, 2, dtype=torch.float64), torch.tensor(0.5)
    batches = [
        Batch(inputs, y, slice(None), hyper={"shared": shared, "own": torch.tensor(float(k))}, seed=k)
        for k, inputs in enumerate((x, other))
    ]
    stacked, axes = stack(batches)
    assert torch.equal(stacked.inputs, torch.stack([x, other]))
    assert stacked.targets is y
    assert stacked.hyper["shared"] is shared
    assert stacked.hyper["own"].tolist() == [0.0, 1.0]
    assert (axes.inputs, axes.targets, axes.hyper) == (0, None, {"shared": None, "own": 0})
    assert (stacked.index, stacked.seed) == (slice(None), None)
    assert stack(batches[:1] * 3)[0].inputs is x


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (Batch(X[:5], Y), r"different shapes \(\(5, 2\), \(23, 2\)\)"),
        (Batch((X, X), Y), "must have the same structure"),
        (Batch(X, Y, hyper={"rate": torch.tensor(1.0)}), "must have the same structure"),
    ],
)
def test_stacking_refuses_problems_of_another_kind(other, sentence):
    with pytest.raises(ValueError, match=sentence):
        stack([Batch(X, Y), other])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_mini_batches_are_those_of_the_members(shared, drop_last):
    """Rows, names and weights belong to each member, or are shared by all."""
    generator = torch.Generator().manual_seed(0)

    def parts(seed):
        generator.manual_seed(0 if shared else seed)
        x = torch.randn(SIZE, 2, generator=generator)
        return x, Y, torch.randperm(40, generator=generator)[:SIZE], torch.rand(SIZE, generator=generator)

    common = parts(0)
    given = [common if shared else parts(s) for s in (1, 2, 3)]
    streams = [
        TensorStream(x, y, index=i, sample_weight=w, batch_size=5, seed=s, drop_last=drop_last)
        for s, (x, y, i, w) in enumerate(given)
    ]
    together = MemberStream(streams)
    assert not together.constant
    for step in (0, 3, 4, 9, 3):
        batch = together.batch(step)
        for k, stream in enumerate(streams):
            alone = stream.batch(step)
            assert same(Batch(batch.inputs[k], batch.targets[k], batch.index[k]), alone)
            assert torch.equal(batch.sample_weight[k], alone.sample_weight)
    assert together.axes == Batch(0, 0, 0, sample_weight=0)


def test_members_that_share_a_full_batch_share_it():
    streams = [TensorStream(X, Y, seed=s) for s in (1, 2, 3)]
    together = MemberStream(streams)
    assert together.batch(5) is together.batch(0)
    assert together.batch(5).inputs is X


def test_release_reaches_the_members():
    streams = [LoaderStream([(X, Y)]) for _ in range(2)]
    together = MemberStream(streams)
    together.batch(1)
    together.release(1)
    with pytest.raises(ValueError, match="step 0 was released"):
        streams[1].batch(0)
