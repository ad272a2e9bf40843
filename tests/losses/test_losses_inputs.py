"""Tests of what losses accept: shapes, types, labels, weights, settings as tensors, autocast, and infinite logits."""

import math

import pytest
import torch

from calibrant.losses import (
    LOSSES,
    avuc,
    binary_discrimination,
    binary_exclusion,
    brier,
    confidence_bce,
    cross_entropy,
    dece,
    dual_focal,
    entropy,
    flsd,
    focal,
    focal_slope,
    logit_margin,
    mdca,
    mmce,
    sece,
    smoothed_cross_entropy,
    soft_accuracy,
    soft_binned_avuc,
    soft_binned_ece,
)
from calibrant.losses.inputs import known_labels

CLASSES = 4
PER_SAMPLE = {
    "cross-entropy": cross_entropy,
    "smoothed": lambda z, y: smoothed_cross_entropy(z, y, 0.1),
    "brier": brier,
    "focal": lambda z, y: focal(z, y, 2.0),
    "flsd": flsd,
    "dual focal": dual_focal,
    "bdc": binary_discrimination,
    "bec": binary_exclusion,
    "confidence bce": confidence_bce,
}
WHOLE_BATCH = {
    "mmce": mmce,
    "mmce weighted": lambda z, y: mmce(z, y, weighted=True),
    "mdca": mdca,
    "sb-ece": soft_binned_ece,
    "avuc": avuc,
    "sb-avuc": soft_binned_avuc,
    "sece": sece,
    "sece hard": lambda z, y: sece(z, y, accuracy="hard"),
    "sece blocks": lambda z, y: sece(z, y, rows=2),
    "dece": dece,
    "dece hard": lambda z, y: dece(z, y, accuracy="hard"),
}
EVERY = pytest.mark.parametrize("loss", (PER_SAMPLE | WHOLE_BATCH).values(), ids=PER_SAMPLE | WHOLE_BATCH)
ERRORS = {"sece": sece, "sece blocks": lambda *a, **k: sece(*a, rows=2, **k), "dece": dece}
CALIBRATION = pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(*(shape or (CLASSES,)), CLASSES, dtype=torch.float64, generator=generator)
    return logits, torch.randint(0, CLASSES, logits.shape[:-1], generator=generator)


@pytest.mark.parametrize("loss", [focal, dual_focal, smoothed_cross_entropy, focal_slope])
def test_settings_per_sample_are_not_broadcast_over_pairs(loss):
    """γ-Net's output of shape (n, 1) would give n × n losses."""
    logits, labels = draw()
    values = torch.linspace(0.1, 0.9, CLASSES, dtype=torch.float64)
    for wrong in (values[:, None], values[None], values[:2]):
        with pytest.raises(ValueError, match=r"must be one number, or a tensor with one value per sample, of shape"):
            loss(logits, labels, wrong)
    with pytest.raises(ValueError, match=r"of shape \(1,\); got shape \(4,\)"):
        loss(logits[:1], labels[:1], values)
    for i in range(CLASSES):
        torch.testing.assert_close(loss(logits, labels, values)[i], loss(logits, labels, values[i].item())[i])
        torch.testing.assert_close(loss(logits, labels, values[i : i + 1]), loss(logits, labels, values[i].item()))


def test_settings_for_all_samples_are_single_numbers():
    logits, labels = draw()
    several = torch.ones(CLASSES, dtype=torch.float64)
    calls = {
        "alpha": lambda: confidence_bce(logits, labels, several),
        "margin": lambda: logit_margin(logits, margin=several),
        "bandwidth": lambda: sece(logits, labels, bandwidth=several),
        "temperature": lambda: dece(logits, labels, temperature=several),
        "width": lambda: mmce(logits, labels, width=several),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=rf"{name} must be one number for all samples; got a tensor of shape"):
            call()


@pytest.mark.parametrize("loss", PER_SAMPLE.values(), ids=PER_SAMPLE)
@pytest.mark.parametrize("shape", [(3, CLASSES), (3, 5), (2, CLASSES, CLASSES)], ids=str)
def test_classes_are_the_last_axis(loss, shape):
    """Torch's cross-entropy takes the second axis, which could have the right length by chance."""
    logits, labels = draw(*shape)
    flat = loss(logits.reshape(-1, CLASSES), labels.reshape(-1))
    torch.testing.assert_close(loss(logits, labels), flat.reshape(shape))


def test_classes_are_the_last_axis_of_soft_targets():
    logits, _ = draw(3, CLASSES)
    soft = draw(3, CLASSES, seed=1)[0].softmax(-1)
    for loss in (cross_entropy, brier, lambda z, t: smoothed_cross_entropy(z, t, 0.1)):
        flat = loss(logits.reshape(-1, CLASSES), soft.reshape(-1, CLASSES))
        torch.testing.assert_close(loss(logits, soft), flat.reshape(3, CLASSES))
        torch.testing.assert_close(loss(logits[0, 0], soft[0, 0]), flat[0])


@pytest.mark.parametrize("loss", WHOLE_BATCH.values(), ids=WHOLE_BATCH)
def test_losses_of_a_batch_take_one_axis_of_samples(loss):
    for shape in ((3, CLASSES), ()):
        logits, labels = torch.zeros(*shape, CLASSES), torch.zeros(shape, dtype=torch.long)
        with pytest.raises(ValueError, match=r"logits must have shape \(samples, classes\)"):
            loss(logits, labels)


@EVERY
@pytest.mark.parametrize("label", [CLASSES, -1, -100, 255])
def test_labels_that_are_no_class_are_errors(loss, label):
    """Torch gives −100 a loss of 0, and a comparison with all classes gives the others a plausible one."""
    logits, labels = draw(6)
    labels[3] = label
    sentence = rf"labels must be class indices from 0 to 3, because the logits have 4 columns; got {label}\."
    with pytest.raises(ValueError, match=sentence):
        loss(logits, labels)
    with pytest.raises(ValueError, match=sentence):
        torch.func.grad(lambda z: loss(z, labels).mean())(logits)


@EVERY
def test_logits_are_floating_point_numbers(loss):
    with pytest.raises(ValueError, match=r"logits must be floating-point numbers; got torch\.int64"):
        loss(torch.zeros(3, CLASSES, dtype=torch.long), torch.zeros(3, dtype=torch.long))


@EVERY
def test_strides_do_not_matter(loss):
    logits, labels = draw(6)
    odd = logits.T.contiguous().T
    twice = torch.stack([labels, labels], 1)[:, 0]
    assert not odd.is_contiguous()
    assert not twice.is_contiguous()
    torch.testing.assert_close(loss(odd, twice), loss(logits, labels), rtol=1e-13, atol=0)


@EVERY
def test_autocast_does_not_lower_the_precision(loss):
    """In a training loop of a user's own, the loss is often inside the autocast context."""
    logits, labels = draw(50)
    logits = logits.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(logits, labels)
    torch.testing.assert_close(found, loss(logits, labels), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("loss", [cross_entropy, brier, mdca])
def test_soft_targets_may_have_another_type(loss, dtype):
    logits, _ = draw(6)
    soft = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64).expand(6, -1)
    torch.testing.assert_close(loss(logits.to(dtype), soft.to(dtype)), loss(logits.to(dtype).float(), soft.float()))
    torch.testing.assert_close(loss(logits, soft.to(dtype)), loss(logits, soft))


def test_soft_accuracy_checks_its_labels():
    logits, labels = draw()
    probs = logits.softmax(-1)
    for wrong in (labels[:, None], labels[:1], labels.double()):
        with pytest.raises(ValueError, match="labels must be one class index"):
            soft_accuracy(probs, wrong)
    found = soft_accuracy(probs.bfloat16(), labels)
    torch.testing.assert_close(found, soft_accuracy(probs.bfloat16().float(), labels))


@pytest.mark.parametrize("loss", [cross_entropy, brier, focal, entropy, binary_discrimination, avuc, soft_binned_avuc])
def test_a_class_with_logit_minus_infinity_does_not_count(loss):
    logits, labels = draw(8)
    labels = labels.clamp_max(CLASSES - 2)
    inputs = {focal: (labels, 0.7), entropy: ()}.get(loss, (labels,))
    found = []
    for excluded in (-torch.inf, -1e6):
        masked = logits.clone().index_fill_(1, torch.tensor([CLASSES - 1]), excluded).requires_grad_()
        value = loss(masked, *inputs).sum()
        found.append((value, torch.autograd.grad(value, masked)[0]))
    torch.testing.assert_close(found[0], found[1])


@CALIBRATION
def test_sample_weights_have_the_shape_of_the_labels(error):
    logits, labels = draw(5)
    for wrong in (torch.ones(5, 1), torch.ones(1), torch.ones(4), torch.tensor(1.0), [1.0] * 5):
        with pytest.raises(
            ValueError, match=r"sample_weight must be a tensor with one weight per sample, of shape \(5,\)"
        ):
            error(logits, labels, sample_weight=wrong)


@CALIBRATION
def test_sample_weights_of_every_type(error):
    logits, labels = draw(5)
    weights = torch.tensor([1, 0, 2, 3, 1])
    expected = error(logits, labels, sample_weight=weights.double())
    for dtype in (torch.int64, torch.uint8, torch.float32, torch.bfloat16):
        torch.testing.assert_close(error(logits, labels, sample_weight=weights.to(dtype)), expected)


@CALIBRATION
def test_samples_without_weight_have_no_error_and_slope(error):
    logits, labels = draw(5)
    logits.requires_grad_()
    value = error(logits, labels, sample_weight=torch.zeros(5))
    assert value.item() == 0
    assert torch.equal(torch.autograd.grad(value, logits)[0], torch.zeros_like(logits))
    assert error(logits, labels, sample_weight=torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0])).isnan()


@CALIBRATION
def test_the_slope_in_a_weight_is_right_at_weight_0(error):
    logits, labels = draw(6)
    weights = torch.tensor([0.0, 1, 2, 0, 1, 1], dtype=torch.float64, requires_grad=True)
    value = lambda w: error(logits, labels, sample_weight=w, **({} if error is dece else {"bandwidth": 0.1}))  # noqa: E731
    (slope,) = torch.autograd.grad(value(weights), weights)
    step = 1e-7
    for i, direction in enumerate(torch.eye(6, dtype=torch.float64)):
        change = (value(weights.detach() + step * direction) - value(weights.detach())) / step
        assert slope[i].item() == pytest.approx(change.item(), rel=1e-4, abs=1e-6)


SETTINGS = {
    "sece bandwidth": lambda z, y, t: sece(z, y, bandwidth=t),
    "sece bandwidth in blocks": lambda z, y, t: sece(z, y, bandwidth=t, rows=2),
    "dece temperature": lambda z, y, t: dece(z, y, temperature=t),
    "mmce width": lambda z, y, t: mmce(z, y, width=t),
    "sb-ece temperature": lambda z, y, t: soft_binned_ece(z, y, temperature=t),
    "sb-avuc temperature": lambda z, y, t: soft_binned_avuc(z, y, temperature=t),
    "sb-avuc threshold": lambda z, y, t: soft_binned_avuc(z, y, threshold=t, temperature=0.5),
    "margin": lambda z, y, t: logit_margin(z, y, margin=t).mean(),
    "alpha": lambda z, y, t: confidence_bce(z, y, 30 * t).mean(),
    "gamma": lambda z, y, t: focal(z, y, t).mean(),
    "epsilon": lambda z, y, t: smoothed_cross_entropy(z, y, t).mean(),
}


@pytest.mark.parametrize("loss", SETTINGS.values(), ids=SETTINGS)
def test_settings_as_tensors_have_slopes_and_a_batched_form(loss):
    logits, labels = draw(7)
    values = torch.tensor([0.3, 0.4], dtype=torch.float64, requires_grad=True)
    expected = [loss(logits, labels, v.item()) for v in values]
    torch.testing.assert_close(torch.func.vmap(lambda v: loss(logits, labels, v))(values), torch.stack(expected))
    assert torch.autograd.gradcheck(lambda v: loss(logits, labels, v), (values[0],))
    assert torch.autograd.grad(loss(logits, labels, values[0]), values)[0][0] != 0


def test_no_loss_reads_a_tensor_on_the_host():
    """On a GPU that would wait for all queued work. The meta device raises an error instead."""
    logits, labels = torch.zeros(5, CLASSES, device="meta"), torch.zeros(5, dtype=torch.long, device="meta")
    setting = torch.tensor(0.3, device="meta")
    for loss in SETTINGS.values():
        assert loss(logits, labels, setting).is_meta
    for loss in (*PER_SAMPLE.values(), *WHOLE_BATCH.values(), *(build() for build in LOSSES.values())):
        assert loss(logits, labels).is_meta


OUTER = ERRORS | {"confidence bce": confidence_bce}


@pytest.mark.parametrize("loss", OUTER.values(), ids=OUTER)
def test_outer_losses_compile_as_one_graph(loss):
    torch._dynamo.reset()
    logits, labels = draw(7)
    compiled = torch.compile(lambda z, y: loss(z, y).mean(), backend="aot_eager", fullgraph=True)
    slopes = []
    for function in (compiled, lambda z, y: loss(z, y).mean()):
        own = logits.clone().requires_grad_()
        slopes.append(torch.autograd.grad(function(own, labels), own)[0])
    torch.testing.assert_close(slopes[0], slopes[1])


@pytest.mark.parametrize("low", [5.0, 4.7])
def test_gammas_of_flsd_have_the_precision_of_logits(low):
    logits, labels = draw(20)
    expected = focal(logits, labels, low)
    rare = cross_entropy(logits, labels) > -math.log(0.3)
    assert rare.any()
    found = flsd(logits, labels, threshold=0.3, low=low)
    torch.testing.assert_close(found[rare], expected[rare], rtol=1e-14, atol=0)


@pytest.mark.parametrize("gap", [10.0, 18.0, 25.0, 80.0])
@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_focal_slope_where_cross_entropy_rounds_to_0(gap, gamma):
    """With q = 1 − p: q^γ·(1 + γ·(1 − q)·log(1/(1 − q))/q), which is about q^γ·(1 + γ)."""
    q = 1 / (1 + math.exp(gap))
    expected = q**gamma * (1 - gamma * (1 - q) * math.log1p(-q) / q)
    for dtype in (torch.float32, torch.float64):
        found = focal_slope(torch.tensor([[gap, 0.0]], dtype=dtype), torch.tensor([0]), gamma)
        assert found.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("mmce", {"width": 0.0}, "width must be positive and finite; got 0.0"),
        ("sb-ece", {"bins": 2.5}, "bins must be a positive whole number; got 2.5"),
        ("sb-ece", {"temperature": math.inf}, "temperature must be positive and finite; got inf"),
        ("avuc", {"threshold": -0.1}, "threshold must be at least 0 and finite; got -0.1"),
        ("sb-avuc", {"threshold": 1.0}, "threshold must lie strictly between 0 and 1; got 1.0"),
        ("mdca", {"gamma": -1.0}, "gamma must be at least 0 and finite; got -1.0"),
        ("label-smoothing", {"epsilon": 2.0}, "epsilon must be between"),
        ("mbls", {"margin": -1.0}, "margin must be at least 0"),
        ("mmce", {"strength": math.inf}, "strength must be at least 0"),
    ],
)
def test_a_loss_checks_its_settings_when_it_is_made(name, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        LOSSES[name](**settings)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda z, y: focal(z, y, -1.0), "gamma must be at least 0 and finite; got -1.0"),
        (lambda z, y: dual_focal(z, y, math.nan), "gamma must be at least 0 and finite; got nan"),
        (lambda z, y: smoothed_cross_entropy(z, y, 1.5), "epsilon must be between 0 and 1; got 1.5"),
        (lambda z, y: flsd(z, y, threshold=0.0), "threshold must lie strictly between 0 and 1; got 0.0"),
        (lambda z, y: logit_margin(z, margin=-1.0), "margin must be at least 0 and finite; got -1.0"),
        (lambda z, y: confidence_bce(z, y, 0.0), "alpha must be positive and finite; got 0.0"),
        (lambda z, y: sece(z, y, bandwidth=math.inf), "bandwidth must be positive and finite; got inf"),
        (lambda z, y: dece(z, y, bins=2.5), "bins must be a positive whole number; got 2.5"),
        (lambda z, y: sece(z, y, order=3), "order must be 1 or 2"),
        (lambda z, y: sece(z, y, accuracy="both"), "accuracy must be 'soft' or 'hard'; got 'both'"),
        (lambda z, y: soft_binned_ece(z, y, order=3), "order must be 1 or 2"),
        (lambda z, y: sece(z, y, rows=2.5), "rows must be a positive whole number; got 2.5"),
    ],
)
def test_functions_check_numbers(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(*draw())


def test_an_error_of_another_kind_keeps_its_words():
    with pytest.raises(RuntimeError, match=r"^out of memory$"), known_labels(3):
        raise RuntimeError("out of memory")
