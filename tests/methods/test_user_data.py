"""``calibrant.fit`` on data as users have them: lists, data frames, data sets, and mistakes."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import calibrant
from calibrant.data import TensorStream
from calibrant.data.vision import Mixup
from calibrant.methods import Samples
from calibrant.methods.core import samples as loaded

CLASSES = 3
TRAIN, VAL = 40, 20


def data(n=TRAIN, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def fit(train, val=None, **settings):
    return calibrant.fit(net(), train, data(VAL, 1) if val is None else val, epochs=1, networks=1, **settings)


def frame(x, y):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(x.numpy()), pandas.Series(y.numpy())


def read_only(values):
    array = values.numpy().copy()
    array.setflags(write=False)
    return array


FORMS = {
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "labels in a list": lambda x, y: (x, y.tolist()),
    "data frames": frame,
    "arrays of float64": lambda x, y: (x.double().numpy(), y.numpy().astype("int32")),
    "turned arrays": lambda x, y: (x.flip(0).numpy()[::-1], y.flip(0).numpy()[::-1]),
    "other byte order": lambda x, y: (x.numpy().astype(">f4"), y.numpy().astype(">i8")),
    "read-only arrays": lambda x, y: (read_only(x), read_only(y)),
}


@pytest.mark.parametrize("form", FORMS)
def test_data_in_memory(form):
    convert = FORMS[form]
    expected = fit(data()).probs(data()[0])
    result = fit(convert(*data()), convert(*data(VAL, 1)))
    torch.testing.assert_close(result.probs(convert(*data())[0]), expected)


@pytest.mark.parametrize("make", [Samples, TensorStream])
def test_parts_and_streams_have_the_precision_of_the_network(make):
    train, val = (make(x.double(), y) for x, y in (data(), data(VAL, 1)))
    torch.testing.assert_close(fit(train, val).probs(data()[0]), fit(data()).probs(data()[0]))


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_read_only_arrays_are_copied():
    fit(FORMS["read-only arrays"](*data())).probs(read_only(data()[0]))


def test_a_misspelt_method_is_answered_by_a_similar_one():
    with pytest.raises(ValueError, match=r"got 'FLG_SECE'\. Did you mean 'flg-sece'\?"):
        calibrant.fit(net(), data(), data(VAL, 1), method="FLG_SECE")


def test_a_list_of_two_batches_is_a_loader():
    batches = [[*batch] for batch in DataLoader(TensorDataset(*data()), TRAIN // 2)]
    assert len(batches) == 2
    assert fit(batches, batches).probs(batches).shape == (TRAIN, CLASSES)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(*data(), strict=True))


class Texts(Dataset):
    """Samples that torch cannot put into a batch."""

    def __len__(self):
        return 8

    def __getitem__(self, row):
        return object(), row % CLASSES


def nested(items):
    return torch.nested.nested_tensor([x for x, _ in items], layout=torch.jagged), torch.stack([y for _, y in items])


X, Y = data()
NAN = X.clone()
NAN[5, 1] = torch.nan
WRONG = {
    "a data set": (TensorDataset(X, Y), r"got a TensorDataset. Pass DataLoader\(dataset, batch_size=128"),
    "mixup": (TensorStream(X, Y, augment_batch=Mixup(1.0, CLASSES)), "train must not have augment_batch"),
    "three tensors": ((X, Y, X), "got a tuple of Tensor, Tensor, Tensor"),
    "single samples": (Stream(), "must yield batches; got a single sample"),
    "samples without a batch": (DataLoader(TensorDataset(X, Y), batch_size=None), "got a single sample"),
    "objects": (DataLoader(Texts(), 4), "train cannot be read: .*batch must contain tensors"),
    "nested tensors": (DataLoader(TensorDataset(X, Y), 4, collate_fn=nested), "Nested tensors are not supported"),
    "no whole batch": (DataLoader(TensorDataset(X, Y), 64, drop_last=True), "hold at least one whole batch"),
    "text": ((np.full((TRAIN, 4), "a"), Y), "The inputs of train must be an array of numbers; got text such as .a."),
    "a column of labels": ((X, Y[:, None]), r"got shape \(40, 1\). Use labels\[:, 0\]"),
    "labels as text": (
        (X, np.array(["a", "b", "c"])[Y]),
        r"text such as '[abc]'\. Number the classes: classes, labels",
    ),
    "labels from 1": ((X, Y + 1), "labels must lie in 0..2 for 3 classes; got values from 1 to 3"),
    "integers": ((X.long(), Y), r"cannot process two samples of train \(int64 .*Integers are not converted"),
    "too few columns": ((X[:, :3], Y), r"cannot process two samples of train \(float32 of shape \(2, 3\)\)"),
    "NaN": ((NAN, Y), "In train, 1 of 40 inputs are not finite; the first is row 5"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_data_is_a_sentence(case):
    train, sentence = WRONG[case]
    with pytest.raises((TypeError, ValueError, FloatingPointError), match=sentence):
        fit(train)


def test_inputs_of_predictions():
    result = fit(data())
    assert repr(result).startswith("Trained(modules=1 × Sequential, n_classes=3, temperature=")
    for wrong, sentence in (
        (X[0], r"cannot process the inputs \(float32 of shape \(4,\)\)"),
        (X[:, :3], r"cannot process the inputs \(float32 of shape \(40, 3\)\)"),
        (TensorDataset(X, Y), "or a loader; got a TensorDataset"),
    ):
        with pytest.raises((TypeError, ValueError), match=sentence):
            result.probs(wrong)
    assert result.probs(X[:1]).shape == (1, CLASSES)
    assert result.probs(X[:0]).shape == (0, CLASSES)


def test_epochs_are_whole_numbers():
    with pytest.raises(ValueError, match=r"epochs must be at least 1 and a whole number; got 2\.5"):
        calibrant.fit(net(), data(), data(VAL, 1), epochs=2.5)


def test_the_part_that_is_wrong_is_named():
    with pytest.raises(ValueError, match=r"cannot process two samples of val \(float32 of shape \(2, 3\)\)"):
        fit(data(), (X[:, :3], Y))
    with pytest.raises(FloatingPointError, match="In val, 1 of 40 inputs are not finite; the first is row 5"):
        fit(data(), (NAN, Y))


@pytest.mark.parametrize("end", [nn.Softmax(1), nn.LogSoftmax(1)])
def test_a_softmax_at_the_end_is_noticed(end):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrant.calibrate(nn.Sequential(net(), end), data(VAL, 1))
    noticed = any("ends in a softmax, but calibration takes logits" in str(w.message) for w in caught)
    assert noticed == isinstance(end, nn.Softmax)


def test_a_loader_without_a_length_can_be_the_validation_part():
    """Methods with folds read it into memory. Its number of samples is not known before."""
    method = calibrant.methods.SelfCalibrated(folds=2, repeats=1, epochs=1, embedding=None)
    in_memory, loaded = (calibrant.fit(net(), data(), val, method=method) for val in (data(), DataLoader(Stream(), 16)))
    torch.testing.assert_close(loaded.probs(data()[0]), in_memory.probs(data()[0]))


class Reads(Dataset):
    """Counts the samples that are read."""

    def __init__(self):
        self.x, self.y = data(VAL, 1)
        self.reads = 0

    def __len__(self):
        return VAL

    def __getitem__(self, row):
        self.reads += 1
        return self.x[row], self.y[row]


@pytest.mark.parametrize(("most", "passes"), [(2**20, 1), (300, 3)])
def test_a_small_validation_loader_is_read_once(monkeypatch, most, passes):
    monkeypatch.setattr(loaded, "KEPT", most)
    val = Reads()
    settings = {"epochs": 20, "networks": 1}
    result = calibrant.fit(net(), data(), DataLoader(val, 8), **settings)
    reads = val.reads / VAL
    assert reads < 2 if passes == 1 else reads >= passes  # the first batch is read before, too
    expected = calibrant.fit(net(), data(), (val.x, val.y), **settings)
    torch.testing.assert_close(result.probs(val.x), expected.probs(val.x))
