"""Tests of batch augmentation: against a loop over images, and through a stream."""

import pickle

import pytest
import torch
import torch.nn.functional as F

from calibrant.data import TensorStream
from calibrant.data.vision import CropAndFlip, Mixup, Normalise

CALLABLES = [CropAndFlip(), Normalise((0.1,), (0.2,)), Mixup(0.3, 5)]


def some(count=64, channels=3, height=7, width=9):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("augment", CALLABLES, ids=repr)
def test_they_can_be_pickled(augment):
    assert pickle.loads(pickle.dumps(augment)) == augment


def test_crops_are_windows_of_the_padded_image_or_mirrored():
    x, pad = some(200), 2
    found = CropAndFlip(pad)(x, torch.Generator().manual_seed(1))
    assert found.dtype == torch.uint8
    padded = F.pad(x, (pad,) * 4)
    seen = set()
    for k in range(len(x)):
        places = [
            (i, j, mirrored)
            for i in range(2 * pad + 1)
            for j in range(2 * pad + 1)
            for mirrored in (False, True)
            if torch.equal(found[k], window(padded[k], i, j, 7, 9, mirrored))
        ]
        assert places
        seen |= {places[0]}
    assert {place[:2] for place in seen} == {(i, j) for i in range(5) for j in range(5)}
    assert {place[2] for place in seen} == {False, True}


def window(image, i, j, height, width, mirrored):
    cut = image[:, i : i + height, j : j + width]
    return cut.flip(2) if mirrored else cut


def test_no_padding_and_no_flip_changes_nothing():
    x = some()
    assert torch.equal(CropAndFlip(0, flip=False)(x, torch.Generator()), x)


def test_normalised_images_have_mean_0_and_standard_deviation_1():
    x = some()
    unit = x.double() / 255
    normalise = Normalise(tuple(unit.mean((0, 2, 3)).tolist()), tuple(unit.std((0, 2, 3)).tolist()))
    found = normalise(x)
    assert found.dtype == torch.get_default_dtype()
    torch.testing.assert_close(found.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std((0, 2, 3)), torch.ones(3))
    torch.testing.assert_close(normalise(x.float() / 255), found)


def test_mixup_mixes_images_and_targets_by_the_same_share():
    """Each image holds its own number, and so does its target: the mixtures must agree."""
    labels = torch.arange(50)
    x = (labels / 49).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    inputs, targets = Mixup(1.0, 50)(x, labels, torch.Generator().manual_seed(0))
    torch.testing.assert_close(targets.sum(1), torch.ones(50))
    torch.testing.assert_close(inputs[:, 0, 0, 0], targets @ (labels / 49))
    shares = targets.max(1).values
    assert 0.5 <= shares.min() < 1
    soft = F.one_hot(labels, 50).float()
    again = Mixup(1.0)(x, soft, torch.Generator().manual_seed(0))
    torch.testing.assert_close(again[1], targets)


def test_mixup_mixes_all_tensors_of_an_input_alike():
    x, labels = torch.rand(20, 3, 2, 2), torch.arange(20) % 4
    expected, soft = Mixup(1.0, 4)(x, labels, torch.Generator().manual_seed(0))
    for inputs in ({"image": x, "age": x[:, 0, 0]}, (x, x[:, 0, 0])):
        mixed, targets = Mixup(1.0, 4)(inputs, labels, torch.Generator().manual_seed(0))
        image, age = mixed.values() if isinstance(inputs, dict) else mixed
        torch.testing.assert_close([image, age, targets], [expected, expected[:, 0, 0], soft])


@pytest.mark.parametrize("alpha", [0.05, 1.0, 4.0])
def test_mixup_draws_its_share_from_the_beta_distribution(alpha):
    """Mean ½ and variance 1/(8α + 4) over 4,000 draws, within five standard errors."""
    generator = torch.Generator().manual_seed(0)
    x, targets = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1), torch.eye(2)
    draws = torch.stack([Mixup(alpha)(x, targets, generator)[1][0, 0] for _ in range(4000)]).double()
    # Where the order is the old one the share does not show: that is one half of the draws, all of them 1.
    shown = draws[draws < 1 - 1e-5]
    variance = 1 / (8 * alpha + 4)
    if alpha >= 1:
        assert abs(shown.mean() - 0.5) < 5 * (variance / len(shown)) ** 0.5
        assert shown.var().item() == pytest.approx(variance, rel=0.15)
    assert ((draws >= 0) & (draws <= 1)).all()


def test_arguments_and_inputs_are_checked():
    with pytest.raises(ValueError, match="pad must be"):
        CropAndFlip(-1)
    with pytest.raises(ValueError, match="alpha must be"):
        Mixup(0.0)
    with pytest.raises(ValueError, match="std must be positive"):
        Normalise((0.5,), (0.0,))
    with pytest.raises(ValueError, match="3 channels"):
        Normalise((0.5,) * 3, (0.2,) * 3)(some(channels=1))
    with pytest.raises(ValueError, match="uint8, or floats"):
        Normalise((0.5,), (0.2,))(some(channels=1).long())
    for tokens in (torch.zeros(64, 5, dtype=torch.long), {"ids": torch.zeros(64, 5), "mask": torch.ones(64, 5) > 0}):
        with pytest.raises(ValueError, match="inputs that can be averaged"):
            Mixup(1.0, 2)(tokens, torch.zeros(64, dtype=torch.long), torch.Generator())
    with pytest.raises(ValueError, match="Give it n_classes"):
        Mixup()(some(), torch.zeros(64, dtype=torch.long), torch.Generator())


def test_a_stream_replays_both_kinds_of_augmentation():
    x, y = some(64), torch.arange(64) % 5
    stream = TensorStream(x, y, batch_size=16, seed=3, augment=CropAndFlip(2), augment_batch=Mixup(1.0, 5))
    first, second = stream.batch(0), stream.batch(1)
    again = TensorStream(x, y, batch_size=16, seed=3, augment=CropAndFlip(2), augment_batch=Mixup(1.0, 5)).batch(0)
    assert first.targets.shape == (16, 5)
    assert first.inputs.is_floating_point()
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, second.inputs)
    assert not TensorStream(x, y, augment_batch=Mixup(1.0, 5)).constant
