"""Streams: the batch of a step is the same one however often, in whatever order and in whichever run it is asked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from calibrant.bilevel import (
    L2,
    SGD,
    Adam,
    Bilevel,
    LabelSmoothing,
    OuterVariables,
    SampleWeights,
    Unrolled,
    composed,
    solve,
)
from calibrant.data import Batch, Indexed, LoaderStream, Stream, TensorStream, as_stream
from calibrant.data.batch import stack
from calibrant.data.members import MemberStream
from calibrant.data.streams import mix

SIZE = 23


def _data(size=SIZE):
    """Inputs that tell which sample they are."""
    x = torch.arange(size, dtype=torch.float64)[:, None] * torch.tensor([1.0, 10.0], dtype=torch.float64)
    return x, torch.arange(size) % 3


def jitter(inputs, generator):
    return inputs + torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)


def _same(a: Batch, b: Batch):
    return (
        torch.equal(a.inputs, b.inputs)
        and torch.equal(a.targets, b.targets)
        and (torch.equal(a.index, b.index) if isinstance(a.index, torch.Tensor) else a.index == b.index)
    )


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
    stream, again = (TensorStream(*_data(), seed=4, **settings) for _ in range(2))
    before = torch.get_rng_state()
    forward = [stream.batch(t) for t in range(60)]
    torch.manual_seed(99)
    assert all(_same(stream.batch(t), forward[t]) for t in reversed(range(60)))
    assert all(_same(again.batch(t), forward[t]) for t in (59, 0, 31, 7, 31))
    torch.set_rng_state(before)
    stream.release(60)
    assert _same(stream.batch(0), forward[0])
    assert stream.constant == all(_same(b, forward[0]) for b in forward)


@pytest.mark.parametrize("settings", STREAMS.values(), ids=STREAMS)
def test_batches_hold_the_samples_that_their_index_names(settings):
    x, y = _data()
    stream = TensorStream(x, y, **{k: v for k, v in settings.items() if k != "augment"})
    for step in range(12):
        batch = stream.batch(step)
        assert torch.equal(batch.inputs, x[batch.index])
        assert torch.equal(batch.targets, y[batch.index])


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 23), (5, 5), (22, 1), (11, 2)])
def test_an_epoch_has_each_sample_once(batch_size, steps):
    stream = TensorStream(*_data(), batch_size=batch_size)
    assert stream.steps_per_epoch == steps
    orders = [torch.cat([stream.batch(e * steps + t).index for t in range(steps)]) for e in range(4)]
    assert all(sorted(order.tolist()) == list(range(SIZE)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4


@pytest.mark.parametrize(("batch_size", "sizes"), [(11, [11, 12]), (22, [23]), (5, [5, 5, 5, 5, 3]), (1, [1] * SIZE)])
def test_a_single_sample_at_the_end_of_an_epoch_joins_the_batch_before(batch_size, sizes):
    streams = [TensorStream(*_data(), batch_size=batch_size, seed=seed) for seed in (0, 1)]
    for epoch in range(2):
        steps = range(epoch * len(sizes), (epoch + 1) * len(sizes))
        assert [len(streams[0].batch(step).targets) for step in steps] == sizes
        for step in steps:
            together = MemberStream(streams).batch(step).index
            assert torch.equal(together, torch.stack([stream.batch(step).index for stream in streams]))
    dropped = TensorStream(*_data(), batch_size=batch_size, drop_last=True)
    assert {len(dropped.batch(step).targets) for step in range(10)} == {batch_size}


def test_drop_last_leaves_out_the_smaller_batch():
    stream = TensorStream(*_data(), batch_size=5, drop_last=True)
    assert stream.steps_per_epoch == 4
    seen = [stream.batch(t).index for t in range(40)]
    assert {len(index) for index in seen} == {5}
    for epoch in range(10):
        assert len(torch.cat(seen[4 * epoch : 4 * epoch + 4]).unique()) == 20
    assert len(torch.cat(seen).unique()) == SIZE  # others are left out in other epochs


@pytest.mark.parametrize("batch_size", [None, SIZE, SIZE + 10])
@pytest.mark.parametrize("drop_last", [False, True])
def test_full_batches_are_the_tensors_themselves(batch_size, drop_last):
    x, y = _data()
    stream = TensorStream(x, y, batch_size=batch_size, drop_last=drop_last)
    batch = stream.batch(17)
    assert stream.constant
    assert batch.inputs is x
    assert batch.targets is y
    assert batch.index == slice(None)
    assert batch is stream.batch(3)


def test_seeds_decide_the_order_and_the_augmentation():
    plain = [TensorStream(*_data(), batch_size=5, seed=s).batch(0) for s in (1, 2)]
    assert not torch.equal(plain[0].index, plain[1].index)
    full = [TensorStream(*_data(), augment=jitter, seed=s).batch(0).inputs for s in (1, 2)]
    assert not torch.equal(full[0], full[1])


def test_augmentation_changes_from_step_to_step_and_not_the_data():
    x, y = _data()
    given = x.clone()
    stream = TensorStream(x, y, augment=jitter)
    assert not torch.equal(stream.batch(0).inputs, stream.batch(1).inputs)
    assert torch.equal(x, given)
    assert not stream.constant


def test_constants_travel_with_every_batch():
    rate = torch.tensor(0.3)
    for stream in (
        TensorStream(*_data(), batch_size=5, hyper={"rate": rate}),
        LoaderStream([_data()], hyper={"rate": rate}),
    ):
        assert stream.batch(3).hyper["rate"] is rate


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda x, y: TensorStream(x, y[:-1]), "inputs has 23 rows and targets 22; they must be the same samples"),
        (lambda x, y: TensorStream(x[:0], y[:0]), "at least one row"),
        (lambda x, y: TensorStream(x, y, index=y[:-1]), r"for each of the 23 rows; got torch.int64 of shape \(22,\)"),
        (lambda x, y: TensorStream(x, y, index=y.float()), r"whole number \(torch.long\)"),
        (lambda x, y: TensorStream(x, y, sample_weight=x), r"one number for each of the 23 rows; got shape \(23, 2\)"),
        (lambda x, y: TensorStream(x, y, sample_weight=-x[:, 0]), "finite and not negative"),
        (lambda x, y: TensorStream(x, y, sample_weight=0 * x[:, 0]), "some must be positive"),
        (
            lambda x, y: TensorStream(x, y, batch_size=0),
            "batch_size must be at least 1, or None for the full batch; got 0",
        ),
        (lambda x, y: as_stream([(x, y)], batch_size=4), "batch_size cannot be combined with a loader"),
        (lambda x, y: LoaderStream([]).batch(0), "gave no batch"),
        (lambda x, y: LoaderStream(iter([(x, y)])).batch(1), "must be iterable again for every epoch"),
        (lambda x, y: LoaderStream([x]).batch(0), "A batch must be .* got Tensor of length 23"),
        (lambda x, y: LoaderStream([(x,)]).batch(0), "A batch must be .* got tuple of length 1"),
        (lambda x, y: LoaderStream([(x, y, y, y)]).batch(0), "A batch holds 3 inputs"),
        (lambda x, y: LoaderStream([3.0]).batch(0), "A batch must be .* got float"),
        (lambda x, y: LoaderStream([{"inputs": x}]).batch(0), r"labels under 'labels' or .*; it has \['inputs'\]"),
    ],
)
def test_errors_say_what_is_wrong(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(*_data())


@pytest.mark.parametrize("kind", [tuple, list])
def test_as_stream_takes_a_pair_of_tensors_or_arrays(kind):
    x, y = _data()
    stream = as_stream(kind([x.numpy(), y.numpy()]), batch_size=5, seed=2)
    assert isinstance(stream, TensorStream)
    assert _same(stream.batch(3), TensorStream(x, y, batch_size=5, seed=2).batch(3))
    assert as_stream(stream) is stream
    assert isinstance(as_stream(DataLoader(TensorDataset(x, y))), LoaderStream)
    assert isinstance(as_stream([(x, y)]), LoaderStream)


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (3, "a int"),
        ("training", "a str"),
        ({"inputs": 1}, "a dict"),
        (torch.zeros(3, 2), "a Tensor"),
        (np.zeros((3, 2)), "a ndarray"),
        ((torch.zeros(3, 2),), "a tuple of Tensor"),
        (((torch.zeros(3, 2), torch.zeros(3)), torch.zeros(3)), "a tuple of tuple, Tensor"),
    ],
)
def test_as_stream_refuses_what_is_no_data(data, got):
    with pytest.raises(
        TypeError, match=rf"two tensors or arrays \(inputs, targets\), a loader, or a Stream; got {got}"
    ):
        as_stream(data)


X, Y = _data()
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
    assert _same(second.batch(11), batches[11])  # as a resumed run asks
    assert all(_same(second.batch(t), batches[t]) for t in reversed(range(12)))


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
    assert all(_same(stream.batch(t), before[t]) for t in range(8))


def test_what_runs_only_once_cannot_begin_anew():
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


OUTERS = {
    "weights": (lambda: SampleWeights(SIZE), "SampleWeights"),
    "smoothing": (lambda: LabelSmoothing(SIZE), "LabelSmoothing"),
    "both": (lambda: OuterVariables(SampleWeights(SIZE), LabelSmoothing(3, per="class")), "OuterVariables"),
}


@pytest.mark.parametrize("name", OUTERS)
def test_per_sample_variables_need_an_index(name):
    make, who = OUTERS[name]
    model = nn.Linear(2, 3).double()
    plain, indexed = (DataLoader(d, batch_size=5) for d in (TensorDataset(X, Y), Indexed(TensorDataset(X, Y))))
    with pytest.raises(
        ValueError, match=rf"{who} .*which samples they hold\..*wrap the data set in calibrant\.data\.Indexed"
    ):
        Bilevel(model, make(), train=plain)
    Bilevel(model, make(), train=indexed)
    Bilevel(model, LabelSmoothing(3, per="class"), train=plain)  # belongs to classes, not to samples


def test_stacking_copies_only_what_differs():
    x, y = _data()
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
    assert stacked.index == slice(None)
    assert stacked.seed is None
    alone, axes = stack(batches[:1] * 3)
    assert alone.inputs is x
    assert axes.inputs is None


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (Batch(X[:5], Y), r"different shapes \(\(5, 2\), \(23, 2\)\)"),
        (Batch((X, X), Y), "differ in structure"),
        (Batch(X, Y, hyper={"rate": torch.tensor(1.0)}), "differ in structure"),
    ],
)
def test_stacking_refuses_problems_of_another_kind(other, sentence):
    with pytest.raises(ValueError, match=sentence):
        stack([Batch(X, Y), other])


def test_members_batches_come_as_one():
    streams = [TensorStream(X, Y, batch_size=5, seed=s) for s in (1, 2, 3)]
    together = MemberStream(streams)
    for step in (0, 3, 9, 3):
        batch = together.batch(step)
        for k, stream in enumerate(streams):
            assert _same(Batch(batch.inputs[k], batch.targets[k], batch.index[k]), stream.batch(step))
    assert together.axes.inputs == together.axes.index == 0


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_gathered_mini_batches_are_those_of_the_members(shared, drop_last):
    """With rows, names and weights of each member's own, or of all."""
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
            assert _same(Batch(batch.inputs[k], batch.targets[k], batch.index[k]), alone)
            assert torch.equal(batch.sample_weight[k], alone.sample_weight)
    assert together.axes == Batch(0, 0, 0, sample_weight=0)


def test_rows_keep_their_numbers_in_the_larger_set():
    x, y = _data()
    rows = torch.tensor([7, 2, 2, 19, 11])
    full = TensorStream(x[rows], y[rows], index=rows)
    assert full.constant
    assert full.batch(0).index is rows
    for step in range(6):
        batch = TensorStream(x[rows], y[rows], index=rows, batch_size=2).batch(step)
        assert torch.equal(batch.inputs, x[batch.index])


def test_weights_have_mean_one_and_follow_their_rows():
    x, y = _data()
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
    """Whole numbers as sample weights, in both losses, train as a set that holds each row so many times."""
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


def test_a_stream_of_ones_own():
    class Counting(Stream):
        def batch(self, step):
            return Batch(X + step, Y)

    problem = Bilevel(nn.Linear(2, 3).double(), train=Counting())
    assert torch.equal(problem.train_batch(4).inputs, X + 4)


def test_seeds_mix_without_collisions():
    assert len({mix(a, b, c) for a in range(10) for b in range(10) for c in range(5)}) == 500
    assert mix(1, 2) == mix(1, 2) != mix(2, 1)
    assert 0 <= mix(0) < 2**63
