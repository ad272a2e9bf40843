"""Tests of γ-Net: its equations, bounds and gradients, and its use in the engine."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.bilevel import (
    SGD,
    Bilevel,
    ConstantGamma,
    FocalWithGamma,
    GammaNet,
    LogitScale,
    OneStep,
    OuterVariables,
    solve,
)
from calibrant.bilevel.variables.gamma import bounded_gamma
from calibrant.data import Batch
from calibrant.losses import cross_entropy, focal
from calibrant.models import resnet18

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


def test_the_published_form_has_few_parameters():
    """The paper's count in its Limitation: "roughly 0.46%"."""
    own = sum(p.numel() for p in GammaNet(512, 100, form="published").parameters())
    whole = sum(p.numel() for p in resnet18(100).parameters())
    assert own == 512 * 100 + 512
    assert round(100 * own / whole, 2) == 0.46


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
    """A network with a linear body and head."""

    def __init__(self):
        self.body, self.head = torch.nn.Linear(6, 12).double(), torch.nn.Linear(12, 4).double()

    def features(self, inputs):
        return self.body(inputs)


def batch():
    x = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Batch(x, torch.arange(20) % 4, sample_weight=torch.linspace(0.5, 1.5, 20, dtype=torch.float64))


def test_the_inner_loss_is_focal_with_gamma_from_detached_features():
    net, own = Headed(), batch()
    outer = GammaNet(12, 4, form="published").double()
    loss = pickle.loads(pickle.dumps(FocalWithGamma()))(net, outer, own)
    features = net.body(own.inputs)
    expected = (own.sample_weight * focal(net.head(features), own.targets, outer(features).detach())).mean()
    torch.testing.assert_close(loss, expected)
    slopes = torch.autograd.grad(loss, list(net.body.parameters()), retain_graph=True)
    torch.testing.assert_close(slopes, torch.autograd.grad(expected, list(net.body.parameters())))
    assert all(slope.abs().max() > 0 for slope in torch.autograd.grad(loss, list(outer.parameters())))


@pytest.mark.parametrize("outer", [GammaNet(6, 3), GammaNet(6, 3, form="published"), ConstantGamma()])
def test_the_engine_moves_gamma(outer):
    """The features of a linear model are its inputs. One look-ahead step moves φ, and the projection holds."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 6, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    problem = Bilevel(
        torch.nn.Linear(6, 3),
        outer,
        train=(x[:40], y[:40]),
        val=(x[40:], y[40:]),
        inner_loss=lambda net, own, data: focal(net(data.inputs), data.targets, own(data.inputs)).mean(),
    )
    optimizers = {"inner_optimizer": SGD(0.1), "outer_optimizer": SGD(1e4)}
    found = solve(problem, hypergradient=OneStep(), outer_steps=3, **optimizers).outer_variables()
    start = dict(outer.named_parameters())
    assert any(not torch.equal(found[name], value) for name, value in start.items())
    for name in {"centre", "gamma"} & set(found):
        assert 0 <= found[name] <= 5


def test_gamma_under_vmap_is_that_of_each_member():
    net, x = GammaNet(12, 4), torch.stack([some(seed=k) for k in range(3)])
    weights = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))

    def gamma(weight, own):
        return torch.func.functional_call(net, {"weight": weight}, (own,))

    found = torch.func.vmap(gamma)(weights, x)
    for k in range(3):
        torch.testing.assert_close(found[k], gamma(weights[k], x[k]))


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="form must be"):
        GammaNet(12, 4, form="sigmoid")
    with pytest.raises(ValueError, match="positive must be one of"):
        GammaNet(12, 4, form="published", positive="square")
    with pytest.raises(ValueError, match="initial between 0 and largest"):
        GammaNet(12, 4, initial=6.0)
    with pytest.raises(ValueError, match="initial between 0 and largest"):
        ConstantGamma(-1.0)
    with pytest.raises(ValueError, match="spread must be"):
        GammaNet(12, 4, spread=1.5)
    with pytest.raises(ValueError, match="prior_strength must be"):
        GammaNet(12, 4, prior_strength=-1)
    with pytest.raises(ValueError, match=r"\(samples, 12\)"):
        GammaNet(12, 4)(some(features=5))
    with pytest.raises(ValueError, match="temperature positive"):
        GammaNet(12, 4, temperature=0)


def test_a_chain_calls_its_gamma_net_and_scales_logits():
    torch.manual_seed(0)
    net, scale = GammaNet(5, 3), LogitScale(2.0)
    chain, features = OuterVariables(net, scale), torch.randn(7, 5)
    logits, batch = torch.randn(7, 3), Batch(features, torch.arange(7) % 3)
    assert torch.equal(chain(features), net(features))

    class Parts:
        def features(self, inputs):
            return inputs

        def head(self, found):
            return logits

    expected = focal(2 * logits, batch.targets, net(features)).mean()
    assert torch.allclose(FocalWithGamma()(Parts(), chain, batch), expected)
    with pytest.raises(TypeError, match="exactly one part with a forward method"):
        OuterVariables(scale)(features)


def test_rescaled_focal_loss_keeps_the_size_of_gradients():
    """The summed size of the gradient in the logits is cross-entropy's, and its direction is the focal loss's."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(50, 4, dtype=torch.float64)).requires_grad_()
    targets = torch.arange(50) % 4

    class Parts:
        def features(self, inputs):
            return inputs

        def head(self, found):
            return logits

    def gradient(loss):
        return torch.autograd.grad(loss, logits)[0]

    def size(slope):
        return slope[torch.arange(50), targets].abs().sum()

    batch, outer = Batch(torch.zeros(50, 3, dtype=torch.float64), targets), ConstantGamma(3.0)
    plain = gradient(FocalWithGamma()(Parts(), outer, batch))
    rescaled = gradient(FocalWithGamma(rescaled=True)(Parts(), outer, batch))
    torch.testing.assert_close(size(rescaled), size(gradient(cross_entropy(logits, targets).mean())))
    torch.testing.assert_close(rescaled / rescaled.norm(), plain / plain.norm())


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_body_learns_from_a_mixture_of_losses(share):
    """The head's gradient is the focal loss's. The body's is a mixture with cross-entropy's."""
    torch.manual_seed(0)
    body, weight = torch.randn(6, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    leaves = body.requires_grad_(), weight.requires_grad_()
    batch = Batch(torch.randn(30, 6, dtype=torch.float64), torch.arange(30) % 3)

    class Parts:
        def features(self, inputs):
            return torch.tanh(inputs @ body)

        def head(self, found):
            return found @ weight

    def gradients(loss):
        return torch.autograd.grad(loss, leaves, retain_graph=True)

    logits = Parts().head(Parts().features(batch.inputs))
    whole = focal(logits, batch.targets, 2.5).mean()
    of_focal, of_plain = gradients(whole), gradients(cross_entropy(logits, batch.targets).mean())
    loss = FocalWithGamma(body_share=share)(Parts(), ConstantGamma(2.5), batch)
    of_body, of_head = gradients(loss)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(of_head, of_focal[1])
    torch.testing.assert_close(of_body, share * of_focal[0] + (1 - share) * of_plain[0])


def test_the_share_of_the_focal_loss_is_checked():
    with pytest.raises(ValueError, match=r"body_share must be between 0 and 1; got 1\.5"):
        FocalWithGamma(body_share=1.5)
