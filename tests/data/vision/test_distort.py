"""Tests of the distortions of held-out images."""

from __future__ import annotations

import pytest
import torch

from calibrant.data.vision import Distort
from calibrant.data.vision.distort import _KINDS


def pictures(count=40, channels=3):
    return torch.randint(0, 256, (count, channels, 16, 16), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def drawn(distort, images, seed=0):
    return distort(images, torch.Generator().manual_seed(seed))


def test_values_stay_in_the_unit_range_and_follow_the_seed():
    images = pictures()
    found = drawn(Distort(), images)
    assert found.shape == images.shape
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert torch.equal(found, drawn(Distort(), images))
    assert not torch.equal(found, drawn(Distort(), images, seed=1))


def test_the_share_is_that_of_the_changed_images():
    images = pictures(2000)
    changed = (drawn(Distort(share=0.2), images) != images / 255).flatten(1).any(1)
    assert abs(float(changed.double().mean()) - 0.2) < 0.05
    assert torch.equal(drawn(Distort(share=0.0), images), images / 255)


@pytest.mark.parametrize("kind", _KINDS)
def test_each_kind_changes_more_the_stronger_it_is(kind):
    x, draws = pictures() / 255, torch.rand(40, 6, generator=torch.Generator().manual_seed(1))
    changes = [(kind(x, torch.full((40,), s), draws) - x).abs().mean() for s in (0.1, 0.9)]
    assert changes[0] < changes[1]


def test_one_channel_is_enough():
    assert drawn(Distort(), pictures(channels=1)).isfinite().all()


@pytest.mark.parametrize("settings", [{"strength": 0.0}, {"strength": 1.5}, {"share": -0.1}, {"share": 2.0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match="must"):
        Distort(**settings)
