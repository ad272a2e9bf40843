"""Tests of streams: the batch of a step is the same at every call, in any order and in any run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.bilevel import (
    L2,
    SGD,
    Adam,
    Bilevel,
    Unrolled,
    composed,
    solve,
)
from calibrant.data import Batch, LoaderStream, Stream, TensorStream, as_stream
from calibrant.data.streams.population_stream import MemberStream
from calibrant.data.streams.streams import mix
from tests.data.stream_cases import SIZE, X, Y, jitter, numbered, same

STREAMS = {
    "full": {},
    "full, augmented": {"augment": jitter},
    "mini": {"batch_size": 5},
    "mini, dropped": {"batch_size": 5, "drop_last": True},
    "mini, augmented": {"batch_size": 5, "augment": jitter},
    "one by one": {"batch_size": 1},
}


@pytest.mark.parametrize("settings", STREAMS.values(), ids=STREAMS)
def test_a_batch_is_a_pure_function_of_the_step(settings):
    stream, again = (TensorStream(*numbered(), seed=4, **settings) for _ in range(2))
    before = torch.get_rng_state()
    forward = [stream.batch(t) for t in range(60)]
    torch.manual_seed(99)
    assert all(same(stream.batch(t), forward[t]) for t in reversed(range(60)))
    assert all(same(again.batch(t), forward[t]) for t in (59, 0, 31, 7, 31))
    torch.set_rng_state(before)
    stream.release(60)
    assert same(stream.batch(0), forward[0])
    assert stream.constant == all(same(b, forward[0]) for b in forward)


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 23), (5, 5), (22, 1), (11, 2)])
def test_an_epoch_has_each_sample_once(batch_size, steps):
    stream = TensorStream(*numbered(), batch_size=batch_size)
    assert stream.steps_per_epoch == steps
    orders = [torch.cat([stream.batch(e * steps + t).index for t in range(steps)]) for e in range(4)]
    assert all(sorted(order.tolist()) == list(range(SIZE)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4


@pytest.mark.parametrize(("batch_size", "sizes"), [(11, [11, 12]), (22, [23]), (5, [5, 5, 5, 5, 3]), (1, [1] * SIZE)])
def test_a_last_single_sample_joins_the_batch_before(batch_size, sizes):
    streams = [TensorStream(*numbered(), batch_size=batch_size, seed=seed) for seed in (0, 1)]
    for epoch in range(2):
        steps = range(epoch * len(sizes), (epoch + 1) * len(sizes))
        assert [len(streams[0].batch(step).targets) for step in steps] == sizes
        for step in steps:
            together = MemberStream(streams).batch(step).index
            assert torch.equal(together, torch.stack([stream.batch(step).index for stream in streams]))
    dropped = TensorStream(*numbered(), batch_size=batch_size, drop_last=True)
    assert {len(dropped.batch(step).targets) for step in range(10)} == {batch_size}


@pytest.mark.parametrize("batch_size", [None, SIZE, SIZE + 10])
@pytest.mark.parametrize("drop_last", [False, True])
def test_full_batches_are_the_tensors_themselves(batch_size, drop_last):
    x, y = numbered()
    stream = TensorStream(x, y, batch_size=batch_size, drop_last=drop_last)
    batch = stream.batch(17)
    assert stream.constant
    assert batch.inputs is x
    assert batch.targets is y
    assert batch.index == slice(None)
    assert batch is stream.batch(3)


def test_seeds_decide_the_order_and_the_augmentation():
    plain = [TensorStream(*numbered(), batch_size=5, seed=s).batch(0) for s in (1, 2)]
    assert not torch.equal(plain[0].index, plain[1].index)
    full = [TensorStream(*numbered(), augment=jitter, seed=s).batch(0).inputs for s in (1, 2)]
    assert not torch.equal(full[0], full[1])


def test_constants_travel_with_every_batch():
    rate = torch.tensor(0.3)
    for stream in (
        TensorStream(*numbered(), batch_size=5, hyper={"rate": rate}),
        LoaderStream([numbered()], hyper={"rate": rate}),
    ):
        assert stream.batch(3).hyper["rate"] is rate


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda x, y: TensorStream(x, y[:-1]), "inputs and targets must be the same samples; got 23 and 22 rows"),
        (lambda x, y: TensorStream(x[:0], y[:0]), "at least one row"),
        (lambda x, y: TensorStream(x, y, index=y[:-1]), r"for each of the 23 rows; got torch.int64 of shape \(22,\)"),
        (lambda x, y: TensorStream(x, y, index=y.float()), r"whole number \(torch.long\)"),
        (lambda x, y: TensorStream(x, y, sample_weight=x), r"one number for each of the 23 rows; got shape \(23, 2\)"),
        (lambda x, y: TensorStream(x, y, sample_weight=-x[:, 0]), "finite and not negative"),
        (lambda x, y: TensorStream(x, y, sample_weight=0 * x[:, 0]), "positive for some rows; got values from 0 to 0"),
        (
            lambda x, y: TensorStream(x, y, batch_size=0),
            "batch_size must be at least 1, or None for the full batch; got 0",
        ),
        (lambda x, y: as_stream([(x, y)], batch_size=4), "batch_size cannot be combined with a loader"),
        (lambda x, y: LoaderStream([]).batch(0), "gave no batch"),
        (lambda x, y: LoaderStream(iter([(x, y)])).batch(1), "iterated again for every epoch"),
        (lambda x, y: LoaderStream([x]).batch(0), "A batch must be .* got Tensor of length 23"),
        (lambda x, y: LoaderStream([(x,)]).batch(0), "A batch must be .* got tuple of length 1"),
        (lambda x, y: LoaderStream([(x, y, y, y)]).batch(0), "A batch holds 3 inputs"),
        (lambda x, y: LoaderStream([3.0]).batch(0), "A batch must be .* got float"),
        (lambda x, y: LoaderStream([{"inputs": x}]).batch(0), r"labels under 'labels' or .*; got \['inputs'\]"),
        (lambda x, y: as_stream(3), r"two tensors or arrays \(inputs, targets\), a loader, or a Stream; got a int"),
        (lambda x, y: as_stream("training"), "got a str"),
        (lambda x, y: as_stream({"inputs": 1}), "got a dict"),
        (lambda x, y: as_stream(x), "got a Tensor"),
        (lambda x, y: as_stream(x.numpy()), "got a ndarray"),
        (lambda x, y: as_stream((x,)), "got a tuple of Tensor"),
        (lambda x, y: as_stream(((x, y), y)), "got a tuple of tuple, Tensor"),
    ],
)
def test_errors_say_what_is_wrong(make, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        make(*numbered())


@pytest.mark.parametrize("kind", [tuple, list])
def test_as_stream_takes_a_pair_of_tensors_or_arrays(kind):
    x, y = numbered()
    stream = as_stream(kind([x.numpy(), y.numpy()]), batch_size=5, seed=2)
    assert isinstance(stream, TensorStream)
    assert same(stream.batch(3), TensorStream(x, y, batch_size=5, seed=2).batch(3))
    assert as_stream(stream) is stream
    assert isinstance(as_stream(DataLoader(TensorDataset(x, y))), LoaderStream)
    assert isinstance(as_stream([(x, y)]), LoaderStream)


def test_rows_keep_their_numbers_in_the_larger_set():
    x, y = numbered()
    rows = torch.tensor([7, 2, 2, 19, 11])
    full = TensorStream(x[rows], y[rows], index=rows)
    assert full.constant
    assert full.batch(0).index is rows
    for step in range(6):
        batch = TensorStream(x[rows], y[rows], index=rows, batch_size=2).batch(step)
        assert torch.equal(batch.inputs, x[batch.index])


def test_weights_have_mean_one_and_follow_their_rows():
    x, y = numbered()
    weights = torch.arange(SIZE)
    stream = TensorStream(x, y, sample_weight=weights, batch_size=5)
    assert stream.sample_weight.dtype == x.dtype
    assert stream.sample_weight.mean() == pytest.approx(1.0, abs=1e-15)
    batch = stream.batch(7)
    assert torch.allclose(batch.sample_weight, batch.inputs[:, 0] / 11, rtol=1e-14)  # the mean of 0, …, 22 is 11
    losses = torch.rand(SIZE)
    whole = TensorStream(x, y, sample_weight=weights).batch(0)
    assert whole.weighted(losses).mean().item() == pytest.approx(float((weights * losses).sum() / weights.sum()))
    assert Batch(x, y).weighted(losses) is losses


def test_weights_count_as_repeated_rows():
    """Training with whole-number sample weights equals training on repeated rows, in both losses."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3).double()
    sets = [(torch.randn(SIZE, 2, dtype=torch.float64), Y, torch.randint(0, 4, (SIZE,))) for _ in range(2)]
    weighted = [TensorStream(x, y, sample_weight=w) for x, y, w in sets]
    repeated = [(x.repeat_interleave(w, 0), y.repeat_interleave(w)) for x, y, w in sets]
    solutions = [
        solve(
            Bilevel(model, L2(model, initial=0.1), train=train, val=val),
            hypergradient=Unrolled(5),
            inner_optimizer=Adam(0.05),
            outer_optimizer=SGD(1.0),
            outer_steps=4,
        )
        for train, val in (weighted, repeated)
    ]
    assert torch.allclose(solutions[0].params, solutions[1].params, rtol=0, atol=1e-12)
    assert torch.allclose(solutions[0].phi, solutions[1].phi, rtol=0, atol=1e-12)
    assert (solutions[0].phi - L2(model, initial=0.1).log).abs().min() > 1e-3


def test_weights_need_a_loss_for_each_sample():
    stream = TensorStream(X, Y, sample_weight=torch.ones(SIZE))
    with pytest.raises(ValueError, match="one value per sample"):
        Bilevel(nn.Linear(2, 3).double(), train=stream, inner_loss=composed(nn.functional.cross_entropy))


def test_a_users_stream():
    class Counting(Stream):
        def batch(self, step):
            return Batch(X + step, Y)

    problem = Bilevel(nn.Linear(2, 3).double(), train=Counting())
    assert torch.equal(problem.train_batch(4).inputs, X + 4)


def test_seeds_mix_without_collisions():
    assert len({mix(a, b, c) for a in range(10) for b in range(10) for c in range(5)}) == 500
    assert mix(1, 2) == mix(1, 2) != mix(2, 1)
    assert 0 <= mix(0) < 2**63
