"""Tests of traced levels against eager ones, and of simplified graphs against the original ones."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from calibrant.bilevel import L2, SGD, Adam, Forward, Plain, Population, SampleWeights, Unrolled, solve
from calibrant.bilevel.compiled import TracedDerivatives
from calibrant.bilevel.compiled import recorder as graph_functions
from calibrant.bilevel.compiled import simplify as passes
from calibrant.bilevel.compiled.traced_derivatives import trace
from calibrant.bilevel.gradients.loss_derivatives import LossDerivatives
from tests.bilevel.loop_cases import CLASSES, SAMPLES, blobs, hidden_dropout, mlp, problem, rich_mlp, run

aten = torch.ops.aten
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def convolutional():
    torch.manual_seed(0)
    layers = [nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, CLASSES)).double()


def mutating():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES)).double()


class Attention(nn.Module):
    """Attention as written by hand: products of three indices and a softmax between them."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.last = nn.Linear(1, 4), nn.Linear(4, 12), nn.Linear(8, CLASSES)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        x = self.norm(self.embed(x.unsqueeze(-1)))
        query, key, value = self.mix(x).chunk(3, dim=-1)
        x = x + torch.softmax(query @ key.mT / 2, dim=-1) @ value
        return self.last(x.flatten(1))


class LongShort(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.last = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.last(self.cells(x.unsqueeze(-1))[0][:, -1])


def built(cls):
    torch.manual_seed(0)
    return cls().double()


def images():
    x, y = blobs()
    return torch.cat([x * k for k in range(1, 9)], 1), y


PROBLEMS = {
    "mlp": lambda: problem(mlp()),
    "mlp, penalties": lambda: problem(mlp(), outer=L2(mlp(), per="unit", initial=0.1)),
    "mini-batches, dropout, batch norm": lambda: problem(rich_mlp(), batch_size=8),
    "dropout by seeding": lambda: problem(hidden_dropout(), batch_size=8),
    "convolution, batch norm": lambda: problem(convolutional(), train=images(), val=images()),
    "mutation": lambda: problem(mutating()),
    "attention": lambda: problem(built(Attention)),
    "LSTM": lambda: problem(built(LongShort)),
    "population": lambda: Population([problem(mlp(s), seed=s) for s in range(3)]),
    "population, dropout, batch norm": lambda: Population(
        [problem(rich_mlp(s), seed=s, batch_size=8) for s in range(3)]
    ),
}


def close(left, right):
    """Nested tensors that are equal up to rounding."""
    if isinstance(left, torch.Tensor):
        torch.testing.assert_close(left, right, **EXACT)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for name in left:
            close(left[name], right[name])
    elif left is None or isinstance(left, bool):
        assert right is left
    else:
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            close(a, b)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_traced_derivatives_are_the_eager_ones(kind):
    case = PROBLEMS[kind]()
    names = case.view.differentiable_buffers
    generator = torch.Generator().manual_seed(1)
    params, phi = case.initial_params(case.initial_phi()), case.initial_phi()
    buffers = case.initial_buffers()

    def random(like):
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    eager, traced = (make(case.inner, names) for make in (LossDerivatives, TracedDerivatives))
    outer_eager, outer_traced = (make(case.outer, names) for make in (LossDerivatives, TracedDerivatives))
    for step in (0, 1):  # the second call replays what the first one traced, at another point
        at = params + 0.1 * random(params), buffers, phi + 0.1 * random(phi)
        point, outer_point = (*at, case.train_batch(step)), (*at, case.val_batch(step))
        close(outer_eager.gradients(*outer_point), outer_traced.gradients(*outer_point))
        close(eager.value(*point), traced.value(*point))
        close(eager.gradient(*point), traced.gradient(*point))
        one, two = eager.linearize(*point), traced.linearize(*point)
        close((one.loss, one.grad, one.buffers), (two.loss, two.grad, two.buffers))
        seeds = random(params), {k: random(buffers[k]) for k in names}
        for d_grad, d_buffers in (seeds, (seeds[0], {}), (2 * seeds[0], seeds[1])):  # repeatedly
            for whole in (True, False):
                back = one.pull(d_grad, d_buffers, params=whole, retain=True)
                close(back, two.pull(d_grad, d_buffers, params=whole))
    assert min(traced.seconds, outer_traced.seconds) > 0


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_quick_recorder_gives_the_numbers_of_make_fx(kind):
    case = PROBLEMS[kind]()
    params, buffers = case.initial_params(case.initial_phi()), case.initial_buffers()
    phi, batch = case.initial_phi(), case.train_batch(0)

    def step(params, phi, adjoint):
        kept = LossDerivatives(case.inner, case.view.differentiable_buffers).linearize(params, buffers, phi, batch)
        back = kept.pull(adjoint, {})
        return kept.loss, kept.grad, back.params, back.phi

    example = [params, phi, torch.ones_like(params)]
    quick, slow = (trace(step, example, quick=way) for way in (True, False))
    assert isinstance(quick, graph_functions.Recording)
    assert not isinstance(slow, graph_functions.Recording)
    results = []
    for module in (quick, slow):
        torch.manual_seed(0)
        results.append(graph_functions.as_function(module)(*(t + 0.1 for t in example)))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


def test_known_numbers_may_be_read_while_a_graph_is_recorded():
    def fn(x):
        return x * torch.tensor(2.0).item()  # make_fx knows the value; the quick recorder leaves this to it

    (x,) = matrices((3,))
    module = trace(fn, [x])
    assert not isinstance(module, graph_functions.Recording)
    close(fn(x), module(x))


def test_constants_of_a_recorded_graph_are_read_at_every_replay():
    scale = torch.ones(3, dtype=torch.float64)
    (x,) = matrices((3,))
    replay = graph_functions.as_function(trace(lambda x: (x * scale).exp(), [x]))
    close(x.exp(), replay(x))
    scale.fill_(2)
    close((2 * x).exp(), replay(x))


@pytest.mark.parametrize("kind", ["mini-batches, dropout, batch norm", "dropout by seeding", "mutation"])
def test_a_traced_run_ends_where_the_eager_one_does(kind):
    eager, traced = (run(PROBLEMS[kind](), compile=compiler) for compiler in (None, "trace"))
    torch.testing.assert_close(traced.params, eager.params, rtol=0, atol=1e-10)
    torch.testing.assert_close(traced.phi, eager.phi, rtol=0, atol=1e-10)
    close(eager.buffers, traced.buffers)
    assert traced.compile_seconds > 0
    assert eager.compile_seconds == 0


def test_forward_mode_in_a_traced_run_is_eager():
    """Its tangents pass through the graph of a step, which a replay does not have."""
    settings = {"hypergradient": Forward(3), "outer_steps": 2}
    eager, traced = (run(problem(outer=L2(mlp(), initial=0.1)), compile=c, **settings) for c in (None, "trace"))
    torch.testing.assert_close(traced.phi, eager.phi, rtol=0, atol=1e-10)


def test_recurrent_networks_in_single_precision_can_be_traced():
    """In float32 torch takes a fused LSTM on the CPU, whose backward pass cannot be recorded."""
    enabled = torch.backends.mkldnn.enabled
    model = built(LongShort).float()
    eager, traced = (run(problem(model), outer_steps=2, compile=compiler) for compiler in (None, "trace"))
    assert (eager.phi - 0.7).abs().max() > 1e-3
    torch.testing.assert_close(traced.phi, eager.phi, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(traced.params, eager.params, rtol=1e-3, atol=1e-3)
    assert torch.backends.mkldnn.enabled == enabled


def test_a_smaller_last_batch_is_traced_again():
    case = problem(mlp(), batch_size=8)  # 8, 8 and 4 samples
    traced = TracedDerivatives(case.inner)
    for step in range(9):
        traced.gradient(case.view.initial(), {}, case.initial_phi(), case.train_batch(step))
    assert traced.traced == 2


def test_many_shapes_are_warned_of(monkeypatch):
    monkeypatch.setattr(TracedDerivatives, "warn_after", 1)
    case = problem(mlp(), train=blobs(), batch_size=8)
    with pytest.warns(UserWarning, match="drop_last=True"):
        run(case, compile="trace", outer_steps=1)


BY_VALUE = {
    "sign": lambda losses, inputs: losses if losses.mean() > 1 else 2 * losses,
    "number": lambda losses, inputs: losses * losses.mean().item(),
    "data": lambda losses, inputs: losses if inputs.sum() > 0 else 2 * losses,
    "mask": lambda losses, inputs: losses.mean() + losses[inputs[:, 0] > 0].mean(),
    # The derivative of the mean contains the number of selected samples, which a replay would not change.
    "selection": lambda losses, inputs: losses.mean() + losses.masked_select(inputs[:, 0] > 0).mean(),
}


@pytest.mark.parametrize("kind", BY_VALUE)
def test_operations_that_depend_on_values_are_refused(kind):
    def loss(net, outer, batch):
        losses = outer.weigh(F.cross_entropy(net(batch.inputs), batch.targets, reduction="none"), batch)
        return BY_VALUE[kind](losses, batch.inputs)

    case = problem(inner_loss=loss)
    run(case, outer_steps=1)
    with pytest.raises(ValueError, match=r"reads values of tensors.*Use torch\.where, or compile=None"):
        run(case, outer_steps=1, compile="trace")


def of_one_hot(net, outer, batch):
    indicators = F.one_hot(batch.targets, CLASSES)
    return outer.weigh(-(indicators * net(batch.inputs).log_softmax(-1)).sum(-1), batch)


def test_one_hot_is_recorded():
    """torch's own function reads the labels to check them. Here the labels differ from step to step."""
    case = problem(inner_loss=of_one_hot, train=blobs(), batch_size=8)
    eager, traced = (run(case, outer_steps=3, compile=compiler) for compiler in (None, "trace"))
    torch.testing.assert_close(traced.phi, eager.phi)
    torch.testing.assert_close(traced.params, eager.params)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mini-batches, dropout, batch norm", "dropout by seeding", "population"])
def test_compiled_runs_end_where_eager_ones_do(kind):
    # Checkpoints take each step twice, from two graphs.
    settings = {"hypergradient": Unrolled(4, memory="checkpoints"), "outer_steps": 2}
    eager, compiled = (run(PROBLEMS[kind](), compile=compiler, **settings) for compiler in (None, "inductor"))
    torch.testing.assert_close(compiled.params, eager.params, rtol=0, atol=1e-8)
    torch.testing.assert_close(compiled.phi, eager.phi, rtol=0, atol=1e-8)


def simplified(fn, *inputs):
    """A function's graph after the passes, with a check that it still computes the same."""
    module = make_fx(fn)(*inputs)
    before = copy.deepcopy(module)(*inputs)
    after = passes.simplify(module)
    after.graph.lint()
    close(before, after(*inputs))
    return after


def count(module, *targets):
    return sum(node.target in targets for node in module.graph.nodes)


def matrices(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


A, B, C, D = (3, 4), (4, 5), (3, 5), (5,)
T, MM, ADDMM, ADD = aten.transpose.int, aten.mm.default, aten.addmm.default, aten.add.Tensor
PASSES = {
    "two transposes": (lambda a, b: (a.t().t() @ b, b.transpose(0, 1).transpose(-1, -2) + 1), [A, B], {T: 0}),
    "two different transposes": (lambda c: c.transpose(0, 1).transpose(1, 2), [(2, 3, 4)], {T: 2}),
    "a transposed product": (lambda a, b, c: (a @ b).t() + c, [A, B, (5, 3)], {ADDMM: 1}),
    "transposed products of stacks": (
        lambda a, b: (torch.bmm(a, b).transpose(1, 2), torch.bmm(a, b)),
        [(2, 3, 4), (2, 4, 5)],
        {aten.bmm.default: 1},
    ),
    "another transpose": (lambda a, b: torch.bmm(a, b).transpose(0, 1), [(2, 3, 4), (2, 4, 5)], {}),
    "a sum of transposes": (lambda a, b: (a.t() + b.t()) @ a, [A, A], {}),
    "sums of transposes and a product": (lambda a, c: a.t() + a.t() + (c @ a).t(), [A, (3, 3)], {}),
    "transposes of stacks": (lambda a, b: a.transpose(1, 2) + b.transpose(-1, 1), [(2, 3, 3)] * 2, {}),
    "transposes of other dimensions": (lambda d: d.transpose(1, 2) + d.transpose(0, 1), [(3, 3, 3)], {}),
    "transposes of other rank": (lambda a, c: a.transpose(1, 2) + c.t(), [(2, 3, 3), (3, 3)], {}),
    "zeros": (lambda a: torch.zeros_like(a) + a + a.new_zeros(3, 4), [A], {ADD: 0}),
    "zeros that broadcast": (lambda a, b: b + torch.zeros_like(a), [A, (4,)], {ADD: 1}),
    "zeros of another precision": (lambda a: a.float() + torch.zeros_like(a), [A], {ADD: 1}),
    "a sum with a product": (lambda a, b, c: c + a @ b, [A, B, C], {ADDMM: 1, MM: 0, ADD: 0}),
    "a row and a product": (lambda a, b, c: c + a @ b, [A, B, D], {ADDMM: 1, MM: 0, ADD: 0}),
    "two products": (lambda a, b, c: (c + a @ b) + (2 * a) @ b, [A, B, C], {ADDMM: 2}),
    "a weighted sum": (lambda a, b, c: torch.add(c, a @ b, alpha=2), [A, B, C], {ADDMM: 0}),
    "a product that is used twice": (lambda a, b, c: (c + a @ b, a @ b), [A, B, C], {MM: 1, ADDMM: 0}),
    "a sum larger than the product": (lambda a, b, s: s + a @ b, [A, B, (2, 3, 5)], {ADDMM: 0}),
    "a product added to itself": (lambda a, b: (a @ b + a @ b) + a @ b, [A, B], {}),
    "repeats": (lambda a: a.exp() * a.exp() + a.exp().sum() + a.sum(0, keepdim=True), [A], {aten.exp.default: 1}),
    "numbers of other types": (lambda a: (a.float() * 1, a.float() * 1.0, a + 1, a + 1.0), [A], {ADD: 2}),
    "views": (
        lambda a: a.view(3, 4).view(12).view(4, 3).view(4, 3) * 2,
        [(2, 6)],
        {aten.view.default: 0, aten.reshape.default: 1},
    ),
    "views of a transpose": (lambda a: a.t().reshape(12).view(3, 4), [(2, 6)], {}),
    "copies": (lambda a: a.clone().expand(2, 6).detach() * 1, [(2, 6)], {aten.clone.default: 0}),
    "a layout that is asked for": (lambda a: a.t().contiguous().as_strided((2, 2), (1, 3)), [A], {}),
}


@pytest.mark.parametrize("case", PASSES)
def test_simplified_graphs_compute_the_same_with_fewer_operations(case):
    fn, shapes, expected = PASSES[case]
    module = simplified(fn, *matrices(*shapes))
    assert {target: count(module, target) for target in expected} == expected


def test_random_numbers_are_never_merged():
    def fn(a):
        return torch.bernoulli(a, 0.5) + 2 * torch.bernoulli(a, 0.5), torch.rand_like(a) - torch.rand_like(a)

    (a,) = matrices((50,))
    module = make_fx(fn)(a)
    before = copy.deepcopy(module)
    after = passes.simplify(module)
    torch.manual_seed(0)
    expected = before(a)
    torch.manual_seed(0)
    found = after(a)
    close(expected, found)
    assert found[1].abs().max() > 0
    assert set(found[0].unique().tolist()) == {0.0, 1.0, 2.0, 3.0}


def test_plain_training_can_be_traced():
    settings = {"hypergradient": Plain(10), "inner_optimizer": Adam(0.02), "outer_steps": 2}
    eager, traced = (solve(problem(rich_mlp(), batch_size=10), compile=c, **settings) for c in (None, "trace"))
    torch.testing.assert_close(traced.params, eager.params, rtol=0, atol=1e-10)


def test_tracing_starts_afresh_with_each_run():
    """Values that a loss reads are frozen within a run, not between runs."""
    strength = [1.0]

    def inner(net, outer, batch):
        return strength[0] * outer.weigh(F.cross_entropy(net(batch.inputs), batch.targets, reduction="none"), batch)

    def ends(compiler):
        case = problem(inner_loss=inner, outer=SampleWeights(SAMPLES))
        return run(case, hypergradient=Unrolled(2), inner_optimizer=SGD(0.1), compile=compiler).params

    first = ends("trace")
    strength[0] = 3.0
    assert not torch.allclose(ends("trace"), first)
    torch.testing.assert_close(ends("trace"), ends(None), rtol=0, atol=1e-10)
