"""Tests of the image networks: sizes, initial parameters, and use as a pure function."""

import pickle

import pytest
import torch

from calibrant.models import FunctionalModule, resnet18, resnet50, small_cnn, wide_resnet

# Counts of the published architectures.
COUNTS = {
    "resnet18": (lambda: resnet18(10), 11_173_962),
    "resnet18-100": (lambda: resnet18(100), 11_220_132),
    "resnet18-imagenet": (lambda: resnet18(1000, stem="imagenet"), 11_689_512),
    "resnet50": (lambda: resnet50(10), 23_520_842),
    "resnet50-imagenet": (lambda: resnet50(1000, stem="imagenet"), 25_557_032),
    "wrn-28-10": (lambda: wide_resnet(10), 36_479_194),
    "wrn-16-4": (lambda: wide_resnet(10, depth=16, width=4), 2_748_890),
    "small_cnn": (lambda: small_cnn(10), 9 * 16 + 2 * 16 + 9 * 16 * 32 + 2 * 32 + 9 * 32 * 64 + 2 * 64 + 65 * 10),
}
SMALL = {
    "resnet": lambda seed=0: resnet18(3, seed=seed),
    "wide": lambda seed=0: wide_resnet(3, depth=10, width=1, seed=seed),
    "cnn": lambda seed=0: small_cnn(3, channels=3, seed=seed),
}


@pytest.mark.parametrize(("build", "count"), COUNTS.values(), ids=COUNTS)
def test_parameters_are_as_many_as_published(build, count):
    assert sum(p.numel() for p in build().parameters()) == count


@pytest.mark.parametrize("build", SMALL.values(), ids=SMALL)
def test_the_start_is_a_function_of_the_seed_alone(build):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = build(seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    again, other = build(seed=1).state_dict(), build(seed=2).state_dict()
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])
    drawn = FunctionalModule(build(seed=2)).draw(1)
    assert torch.equal(drawn, FunctionalModule(build(seed=1)).initial())


@pytest.mark.parametrize("build", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("size", [8, 16, 32])
def test_logits_are_the_last_layer_of_the_features(build, size):
    net, seen = pickle.loads(pickle.dumps(build())).eval(), []
    net.fc.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    x = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    logits = net(x)
    assert logits.shape == (2, 3)
    assert seen[0].shape == (2, net.fc.in_features)
    torch.testing.assert_close(logits, net.fc(seen[0]))


@pytest.mark.parametrize(
    ("build", "part", "inside", "outside"),
    [
        (lambda: resnet18(3), "stem", 32, 32),
        (lambda: resnet18(3), "blocks", 32, 4),
        (lambda: resnet18(3, stem="imagenet"), "stem", 64, 16),
        (lambda: resnet18(3, stem="imagenet"), "blocks", 16, 2),
        (lambda: wide_resnet(3, depth=10, width=1), "blocks", 32, 8),
        (lambda: small_cnn(3, channels=3), "body", 32, 4),
    ],
)
def test_images_shrink_where_they_should(build, part, inside, outside):
    layers = getattr(build().eval(), part)
    channels = next(layer for layer in layers.modules() if isinstance(layer, torch.nn.Conv2d)).in_channels
    x = torch.zeros(1, channels, inside, inside)
    assert layers(x).shape[-2:] == (outside, outside)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="stem must be"):
        resnet18(10, stem="small")
    with pytest.raises(ValueError, match="depth must be"):
        wide_resnet(10, depth=27)
    with pytest.raises(ValueError, match="at least 1"):
        small_cnn(0)
    with pytest.raises(ValueError, match="at least 1"):
        resnet50(0)
