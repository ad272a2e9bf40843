"""Tests of γ-Net: its equations, bounds and gradients, and its use in the engine."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from calibrant.bilevel import ConstantGamma, FocalWithGamma, GammaNet, OuterVariable, OuterVariables
from calibrant.bilevel.variables.gamma import bounded_gamma
from calibrant.data import Batch
from calibrant.losses import cross_entropy, focal

POSITIVE = ["abs", "min-max", "sigmoid", "relu", "softplus"]


def some(rows=40, features=12, seed=0):
    return torch.randn(rows, features, generator=torch.Generator().manual_seed(seed)).relu()


def test_the_published_form_by_its_equations():
    x, net = some().double(), GammaNet(12, 4, form="published", temperature=0.02, seed=3).double()
    for row, found in zip(x, net(x), strict=True):
        a = [sum(row[i] * net.attention[i, j] for i in range(12)) for j in range(4)]
        p = torch.softmax(torch.stack(a), 0)
        mixed = torch.stack([sum(p[j] * net.attention[i, j] for j in range(4)) for i in range(12)])
        assert found.item() == pytest.approx(abs((mixed * net.weight).sum().item()) / 0.02, rel=1e-9)


@pytest.mark.parametrize("positive", POSITIVE)
def test_rescaled_gamma_has_mean_one_and_is_never_negative(positive):
    x, net = some(), GammaNet(12, 4, form="published", positive=positive)
    net.rescale(x)
    assert net(x).mean().item() == pytest.approx(1, rel=1e-5)
    assert (net(some(500, seed=1)) >= 0).all()
    assert net(x).std() > 0


def test_gamma_is_one_at_zero_features_before_rescaling():
    assert GammaNet(12, 4, form="published")(torch.zeros(3, 12)).tolist() == pytest.approx([1.0] * 3)


def test_features_for_which_gamma_is_zero_cannot_be_rescaled():
    net = GammaNet(12, 4, form="published", positive="relu")
    with torch.no_grad():
        net.weight.zero_()
    with pytest.raises(ValueError, match="All γ are 0"):
        net.rescale(some())


@given(st.floats(0, 5), st.floats(0, 1), st.floats(0, 1e6), st.integers(0, 50))
def test_the_bounded_form_stays_between_zero_and_its_bound(centre, spread, scale, seed):
    """For every centre in [0, 5], any weights and any features."""
    weight = scale * torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gamma = bounded_gamma(
        some(seed=seed).double(), torch.tensor(centre, dtype=torch.float64), weight, spread=spread, largest=5.0
    )
    assert gamma.min() >= -1e-12
    assert gamma.max() <= 5 + 1e-12


def test_huge_weights_do_not_saturate_the_bounded_form():
    """Gradients of both parameters survive weights a million times too large, and γ still differs between samples."""
    net = GammaNet(12, 4).double()
    with torch.no_grad():
        net.weight.copy_(1e6 * torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    gamma = net(some().double())
    assert 0.3 < gamma.std() < 1
    (slope,) = torch.autograd.grad(gamma[0], net.weight)
    assert slope.abs().max() * net.weight.abs().max() > 1e-3


def test_the_level_of_gamma_belongs_to_the_centre():
    """A direction that all samples share moves no γ: some lie above the centre and some below, whatever the weights."""
    net = GammaNet(12, 4, initial=2.0).double()
    shared = torch.linspace(-1, 1, 12, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(100 * shared)
    gamma = net(some().double() + 5 * shared)
    assert 0.1 < (gamma > 2).double().mean() < 0.9
    assert gamma.std() > 0.2


def test_the_bounded_form_starts_at_its_centre_with_a_slope():
    net = GammaNet(12, 4, initial=1.5)
    gamma = net(some())
    assert gamma.tolist() == pytest.approx([1.5] * 40)
    slopes = torch.autograd.grad(gamma[0], (net.centre, net.weight))
    assert all(slope.abs().max() > 0 for slope in slopes)
    assert net(some(1)).tolist() == pytest.approx([1.5])


def test_gamma_does_not_depend_on_the_scale_of_the_features():
    net = GammaNet(12, 4).double()
    with torch.no_grad():
        net.weight.normal_(generator=torch.Generator().manual_seed(0))
    x = some().double() + 1  # far from 0, where the normalisation's small constant would count
    torch.testing.assert_close(net(x), net(1000 * x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("form", "positive"), [("bounded", "abs"), *(("published", name) for name in POSITIVE)])
def test_gradients(form, positive):
    net = GammaNet(5, 3, form=form, positive=positive).double()
    x = some(6, 5).double() + 0.1
    net.rescale(x)
    with torch.no_grad():
        net.weight.add_(0.1 * torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    names, start = zip(*((k, p.detach().clone().requires_grad_()) for k, p in net.named_parameters()), strict=True)

    def gamma(*values):
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(gamma, start)
    assert torch.autograd.gradgradcheck(gamma, start)


def test_projection_bounds_the_centre_and_the_prior_shrinks_weights():
    net = GammaNet(12, 4, largest=3.0, prior_strength=2.0)
    for outside, inside in ((-1.0, 0.0), (4.0, 3.0), (1.2, 1.2)):
        moved = net.project({"centre": torch.tensor(outside), "weight": torch.ones(12)})
        assert moved["centre"].item() == pytest.approx(inside)
        assert torch.equal(moved["weight"], torch.ones(12))
    with torch.no_grad():
        net.weight.fill_(0.5)
    assert net.prior().item() == pytest.approx(12 * 0.25)
    published = GammaNet(12, 4, form="published")
    values = dict(published.named_parameters())
    assert published.project(values) is values
    assert published.prior() == 0.0
    constant = ConstantGamma(2.0)
    assert constant(some()).tolist() == [2.0] * 40
    assert constant.project({"gamma": torch.tensor(7.0)})["gamma"].item() == 5.0


class Headed:
    """A network of two functions."""

    def __init__(self, features, head):
        self.features, self.head = features, head


def test_the_inner_loss_is_focal_with_gamma_from_detached_features():
    body, head = nn.Linear(6, 12).double(), nn.Linear(12, 4).double()
    x = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = Batch(x, torch.arange(20) % 4, sample_weight=torch.linspace(0.5, 1.5, 20, dtype=torch.float64))
    outer = GammaNet(12, 4, form="published").double()
    loss = pickle.loads(pickle.dumps(FocalWithGamma()))(Headed(body, head), outer, batch)
    expected = (batch.sample_weight * focal(head(body(x)), batch.targets, outer(body(x)).detach())).mean()
    torch.testing.assert_close(loss, expected)
    slopes = torch.autograd.grad(loss, list(body.parameters()), retain_graph=True)
    torch.testing.assert_close(slopes, torch.autograd.grad(expected, list(body.parameters())))
    assert all(slope.abs().max() > 0 for slope in torch.autograd.grad(loss, list(outer.parameters())))


def test_gamma_under_vmap_is_that_of_each_member():
    net, x = GammaNet(12, 4), torch.stack([some(seed=k) for k in range(3)])
    weights = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))

    def gamma(weight, own):
        return torch.func.functional_call(net, {"weight": weight}, (own,))

    found = torch.func.vmap(gamma)(weights, x)
    for k in range(3):
        torch.testing.assert_close(found[k], gamma(weights[k], x[k]))


class Doubled(OuterVariable):
    def outputs(self, logits, batch):
        return 2 * logits


def test_a_chain_calls_its_gamma_net_and_scales_logits():
    torch.manual_seed(0)
    net, scale = GammaNet(5, 3), Doubled()
    chain, features = OuterVariables(net, scale), torch.randn(7, 5)
    logits, batch = torch.randn(7, 3), Batch(features, torch.arange(7) % 3)
    assert torch.equal(chain(features), net(features))

    network = Headed(lambda inputs: inputs, lambda found: logits)
    expected = focal(2 * logits, batch.targets, net(features)).mean()
    assert torch.allclose(FocalWithGamma()(network, chain, batch), expected)
    with pytest.raises(TypeError, match="exactly one part with a forward method"):
        OuterVariables(scale)(features)


def test_rescaled_focal_loss_keeps_the_size_of_gradients():
    """The summed size of the gradient in the logits is cross-entropy's, and its direction is the focal loss's."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(50, 4, dtype=torch.float64)).requires_grad_()
    targets = torch.arange(50) % 4

    network = Headed(lambda inputs: inputs, lambda found: logits)

    def gradient(loss):
        return torch.autograd.grad(loss, logits)[0]

    def size(slope):
        return slope[torch.arange(50), targets].abs().sum()

    batch, outer = Batch(torch.zeros(50, 3, dtype=torch.float64), targets), ConstantGamma(3.0)
    plain = gradient(FocalWithGamma()(network, outer, batch))
    rescaled = gradient(FocalWithGamma(rescaled=True)(network, outer, batch))
    torch.testing.assert_close(size(rescaled), size(gradient(cross_entropy(logits, targets).mean())))
    torch.testing.assert_close(rescaled / rescaled.norm(), plain / plain.norm())


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_body_learns_from_a_mixture_of_losses(share):
    """The head's gradient is the focal loss's. The body's is a mixture with cross-entropy's."""
    torch.manual_seed(0)
    body, weight = torch.randn(6, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    leaves = body.requires_grad_(), weight.requires_grad_()
    batch = Batch(torch.randn(30, 6, dtype=torch.float64), torch.arange(30) % 3)

    network = Headed(lambda inputs: torch.tanh(inputs @ body), lambda found: found @ weight)

    def gradients(loss):
        return torch.autograd.grad(loss, leaves, retain_graph=True)

    logits = network.head(network.features(batch.inputs))
    whole = focal(logits, batch.targets, 2.5).mean()
    of_focal, of_plain = gradients(whole), gradients(cross_entropy(logits, batch.targets).mean())
    loss = FocalWithGamma(body_share=share)(network, ConstantGamma(2.5), batch)
    of_body, of_head = gradients(loss)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(of_head, of_focal[1])
    torch.testing.assert_close(of_body, share * of_focal[0] + (1 - share) * of_plain[0])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GammaNet(12, 4, form="sigmoid"), "form must be"),
        (lambda: GammaNet(12, 4, form="published", positive="square"), "positive must be one of"),
        (lambda: GammaNet(12, 4, initial=6.0), "initial between 0 and largest"),
        (lambda: ConstantGamma(-1.0), "initial between 0 and largest"),
        (lambda: GammaNet(12, 4, spread=1.5), "spread must be"),
        (lambda: GammaNet(12, 4, prior_strength=-1), "prior_strength must be"),
        (lambda: GammaNet(12, 4)(some(features=5)), r"\(samples, 12\)"),
        (lambda: GammaNet(12, 4, temperature=0), "temperature positive"),
        (lambda: FocalWithGamma(body_share=1.5), r"body_share must be between 0 and 1; got 1\.5"),
    ],
)
def test_arguments_are_checked(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
