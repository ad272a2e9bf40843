"""Common tests of all training losses; a new loss is one more row of the table."""

import itertools
import pickle

import pytest
import torch

from calibrant.losses import LOSSES, dece, sece

VARIANTS = {name: build() for name, build in LOSSES.items()} | {
    "label-smoothing-0.1": LOSSES["label-smoothing"](epsilon=0.1),
    "focal-0.3": LOSSES["focal"](gamma=0.3),
    "dual-focal-0.5": LOSSES["dual-focal"](gamma=0.5),
    "mbls-0": LOSSES["mbls"](margin=0.0),
    "mbls-1": LOSSES["mbls"](margin=1.0),
    "bdc": LOSSES["cpc"](exclusion=0.0),
    "bec": LOSSES["cpc"](discrimination=0.0),
    "mmce-weighted": LOSSES["mmce"](weighted=True),
    "focal-mdca": LOSSES["mdca"](gamma=1.0),
    "focal-sb-ece": LOSSES["sb-ece"](gamma=1.0),
    "avuc-fixed": LOSSES["avuc"](threshold=0.7),
    "focal-sb-avuc": LOSSES["sb-avuc"](gamma=1.0),
}
EVERY = pytest.mark.parametrize("loss", VARIANTS.values(), ids=VARIANTS)
OUTER = {
    "sece": sece,
    "sece-squared": lambda z, y: sece(z, y, order=2),
    "sece-blocks": lambda z, y: sece(z, y, rows=2),
    "dece": dece,
}
CLASSES = 4


def draw(rows=7, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, CLASSES, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, CLASSES, (rows,), generator=generator)


@EVERY
def test_one_finite_value_for_each_sample(loss):
    logits, labels = draw()
    values = loss(logits, labels)
    assert values.shape == labels.shape
    assert values.isfinite().all()


@EVERY
def test_losses_are_values(loss):
    again = pickle.loads(pickle.dumps(loss))
    assert again == loss
    assert hash(again) == hash(loss)
    logits, labels = draw()
    assert torch.equal(again(logits, labels), loss(logits, labels))


@EVERY
def test_gradients(loss):
    logits, labels = draw()
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), (logits.requires_grad_(),))


@EVERY
def test_second_derivatives(loss):
    logits, labels = draw()
    assert torch.autograd.gradgradcheck(lambda z: loss(z, labels).mean(), (logits.requires_grad_(),))


SATURATED = {
    "right": torch.arange(CLASSES),
    "wrong": torch.arange(CLASSES).roll(1),
    "mixed": torch.tensor([0, 1, 3, 2]),
}


@pytest.mark.parametrize("labels", SATURATED.values(), ids=SATURATED)
@pytest.mark.parametrize("size", [1e4, 20.0, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("loss", (VARIANTS | OUTER).values(), ids=VARIANTS | OUTER)
def test_slopes_are_finite_where_probabilities_are_0_and_1(loss, dtype, size, labels):
    """First and second slopes at logits of ±1e4 (p is 0 or 1), of ±20 (p rounds to 1 in float32), and all equal."""
    logits = (size * (2 * torch.eye(CLASSES, dtype=dtype) - 1)).requires_grad_()
    value = loss(logits, labels).mean()
    assert value.isfinite()
    (slope,) = torch.autograd.grad(value, logits, create_graph=True)
    assert slope.isfinite().all()
    if slope.requires_grad:
        (second,) = torch.autograd.grad(slope.square().sum(), logits)
        assert second.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("loss", (VARIANTS | OUTER).values(), ids=VARIANTS | OUTER)
def test_half_precision_is_computed_in_single_precision(loss, dtype):
    for size, labels in itertools.product((1e4, 20.0, 0.0), SATURATED.values()):
        logits = (size * (2 * torch.eye(CLASSES) - 1)).to(dtype).requires_grad_()
        value = loss(logits, labels)
        torch.testing.assert_close(value, loss(logits.float(), labels), rtol=0, atol=0)
        (slope,) = torch.autograd.grad(value.mean(), logits)
        assert slope.dtype == dtype
        assert slope.isfinite().all()


@pytest.mark.parametrize("loss", (VARIANTS | OUTER).values(), ids=VARIANTS | OUTER)
def test_labels_are_whole_numbers_one_per_row(loss):
    logits, labels = draw()
    expected = loss(logits, labels)
    for dtype in (torch.int32, torch.int16, torch.uint8):
        torch.testing.assert_close(loss(logits, labels.to(dtype)), expected, rtol=0, atol=0)
    for wrong in (labels.float(), labels[:, None], labels[:1], labels[:-1]):
        with pytest.raises(ValueError, match="labels must be one class index"):
            loss(logits, wrong)


@pytest.mark.parametrize("name", ["mmce", "mdca", "sb-ece", "avuc", "sb-avuc", *OUTER])
def test_a_loss_of_a_whole_batch_needs_a_sample(name):
    logits, labels = draw()
    with pytest.raises(ValueError, match="with at least one sample"):
        (VARIANTS | OUTER)[name](logits[:0], labels[:0])


@EVERY
def test_a_batch_of_one_sample_has_a_finite_slope(loss):
    logits = torch.zeros(1, CLASSES).requires_grad_()
    (slope,) = torch.autograd.grad(loss(logits, torch.tensor([1])).mean(), logits)
    assert slope.isfinite().all()


@EVERY
def test_vmap_gives_what_a_loop_gives(loss):
    pairs = [draw(seed=k) for k in range(3)]
    logits, labels = (torch.stack(part) for part in zip(*pairs, strict=True))
    slope = torch.func.grad(lambda z, y: loss(z, y).mean())
    found = torch.func.vmap(slope)(logits, labels)
    for own, (z, y) in zip(found, pairs, strict=True):
        torch.testing.assert_close(own, slope(z, y))


@EVERY
def test_no_control_flow_depends_on_data(loss):
    """One graph for the whole loss, which serves other data too."""
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    for seed in range(2):
        logits, labels = draw(seed=seed)
        torch.testing.assert_close(compiled(logits, labels), loss(logits, labels))


@EVERY
def test_the_mean_does_not_depend_on_the_order_of_samples(loss):
    logits, labels = draw(20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loss(logits[order], labels[order]), loss(logits, labels)[order])


@EVERY
def test_descent_keeps_predictions_right_and_makes_the_loss_smaller(loss):
    """From logits that lean towards the labels, as after the first epochs; AvUC is not useful earlier."""
    _, labels = draw(40)
    logits = 2.0 * torch.nn.functional.one_hot(labels, CLASSES).double()
    start = loss(logits, labels).mean()
    for _ in range(60):
        logits.requires_grad_()
        (slope,) = torch.autograd.grad(loss(logits, labels).sum(), logits)
        logits = (logits - 0.2 * slope).detach()
    assert loss(logits, labels).mean() < start
    assert (logits.argmax(1) == labels).all()
    assert logits.softmax(1).amax(1).min() > 0.7
