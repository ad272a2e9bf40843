"""Tests of shifted images: the effect of each kind, and unchanged types and ranges."""

import pickle

import pytest
import torch

from studies.images import SHIFTS, Shift, brightness, contrast, gaussian_blur, gaussian_noise


def some():
    return torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
def test_every_shift_keeps_type_shape_and_range_and_repeats(shift):
    x = some()
    found = shift(x)
    assert found.dtype == torch.uint8
    assert found.shape == x.shape
    assert not torch.equal(found, x)
    assert torch.equal(pickle.loads(pickle.dumps(shift))(x), found)
    unit = shift(x.double() / 255)
    assert unit.min() >= 0
    assert unit.max() <= 1
    if shift.kind != "noise":  # which is drawn in the images' own precision
        assert ((255 * unit).round() - found).abs().max() <= 1


def test_the_second_strength_moves_images_further():
    x = some()
    moved = {name: (shift(x).float() - x.float()).abs().mean() for name, shift in SHIFTS.items()}
    for kind in ("noise", "blur", "contrast", "brightness"):
        assert moved[f"{kind}-1"] < moved[f"{kind}-2"]


def test_noise_has_its_standard_deviation_and_its_seed():
    x = torch.full((50, 3, 16, 16), 0.5, dtype=torch.float64)
    found = gaussian_noise(x, 0.05, seed=1) - x
    assert found.std().item() == pytest.approx(0.05, rel=0.03)
    assert not torch.equal(gaussian_noise(x, 0.05, seed=2) - x, found)


def test_blur_spreads_a_point_and_keeps_flat_images():
    x = torch.zeros(1, 2, 33, 33, dtype=torch.float64)
    x[0, 1, 16, 16] = 1
    found = gaussian_blur(x, 1.5)
    assert found[0, 0].abs().max() == 0
    places = torch.arange(33, dtype=torch.float64) - 16
    for axis in (0, 1):
        assert (found[0, 1].sum(axis) @ places.square()).item() == pytest.approx(1.5**2, rel=0.05)
    assert found.sum().item() == pytest.approx(1)
    torch.testing.assert_close(gaussian_blur(x + 0.5, 5.0)[0, 0], x[0, 0] + 0.5)


def test_contrast_keeps_each_channels_mean_and_brightness_scales():
    x = some().double() / 255
    found = contrast(x, 0.4)
    torch.testing.assert_close(found.mean((2, 3)), x.mean((2, 3)))
    torch.testing.assert_close(found.std((2, 3)), 0.4 * x.std((2, 3)))
    torch.testing.assert_close(brightness(x, 0.25), 0.25 * x)
    assert brightness(x, 3.0).max() == 1


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="kind must be"):
        Shift("fog", 0.1)
    with pytest.raises(ValueError, match="strength must be positive"):
        gaussian_blur(some(), 0.0)
    with pytest.raises(ValueError, match="strength must be at least 0"):
        gaussian_noise(some(), -1.0)
