"""Tests that results on a GPU equal those on the CPU. Skipped without a GPU."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.bilevel import (
    SGD,
    Adam,
    AdamW,
    Bilevel,
    Checkpoint,
    Direct,
    FocalWithGamma,
    GammaNet,
    History,
    Implicit,
    LogitMap,
    MovingAverage,
    OneStep,
    Plain,
    Population,
    SampleWeights,
    Unrolled,
    solve,
)
from calibrant.bilevel.variables.logits import BehindMap
from tests.bilevel.loop_cases import Replaces

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1, bias=False)
        self.norm, self.drop, self.head = nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.drop(torch.tanh(self.norm(self.conv(x.unsqueeze(1))))).flatten(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.rnn(x.unsqueeze(-1))[0][:, -1])


def problem(device, seed=0, model=Net, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    net = model().to(device, dtype)
    x, y = torch.randn(60, 6, dtype=dtype), torch.randint(0, 3, (60,))
    data = {"train": (x[:40].to(device), y[:40].to(device)), "val": (x[40:].to(device), y[40:].to(device))}
    return Bilevel(net, SampleWeights(40, initial_weight=0.8), batch_size=16, seed=seed, **data, **options)


def settings(**more):
    return {
        "hypergradient": Unrolled(6),
        "inner_optimizer": Adam(1e-2),
        "outer_optimizer": SGD(20.0),
        "outer_steps": 4,
        **more,
    }


@pytest.mark.parametrize("model", [Net, Recurrent])
@pytest.mark.parametrize("memory", ["graphs", "checkpoints"])
@pytest.mark.parametrize("compile", [None, "trace"])
def test_gpu_equals_cpu(model, memory, compile):
    """Dropout masks and batch orders included: they are drawn on the CPU."""
    if model is Recurrent and compile:
        pytest.skip("cuDNN's recurrent nets are replaced in eager mode only")
    chosen = settings(hypergradient=Unrolled(6, memory=memory))
    expected = solve(problem("cpu", model=model), **chosen)
    found = solve(problem("cuda", model=model), **chosen, compile=compile)
    assert found.params.is_cuda
    assert torch.allclose(found.params.cpu(), expected.params, rtol=1e-7, atol=1e-9)
    assert torch.allclose(found.phi.cpu(), expected.phi, rtol=1e-7, atol=1e-9)


def test_population_equals_single_runs():
    problems = [problem("cuda", seed) for seed in range(4)]
    rates = torch.tensor([1e-2, 2e-2, 5e-3, 1e-2], dtype=torch.float64, device="cuda")
    together = solve(Population(problems), **settings(inner_optimizer=Adam(rates)), compile="trace")
    for k, rate in enumerate(rates.tolist()):
        alone = solve(problems[k], **settings(inner_optimizer=Adam(rate)))
        assert torch.allclose(together.member(k).params, alone.params, rtol=1e-8, atol=1e-10)


def test_a_resumed_run_continues_on_the_gpu(tmp_path):
    """Without outer variables, too: φ is empty, and its device must still be that of the network."""

    def run(outer_steps, **more):
        torch.manual_seed(0)
        x, y = torch.randn(40, 6, dtype=torch.float64), torch.randint(0, 3, (40,))
        one = Bilevel(Net().to("cuda", torch.float64), train=(x, y), batch_size=16)
        history = History()
        callbacks = [history, MovingAverage(start=0), Checkpoint(tmp_path / "run", every=2)]
        settings = {"hypergradient": Plain(2), "inner_optimizer": Adam(1e-2), "callbacks": callbacks}
        solution = solve(one, outer_steps=outer_steps, **settings, **more)
        return solution.logits(x), history["inner_loss"]

    whole = run(4)
    run(2)
    logits, losses = run(4, resume=tmp_path / "run")
    assert logits.is_cuda
    assert torch.allclose(logits, whole[0], rtol=1e-7, atol=1e-9)
    assert torch.allclose(losses, whole[1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("body_share", [1.0, 0.0])
@pytest.mark.parametrize(
    "hypergradient",
    [Plain(2), OneStep(1, scope="head"), OneStep(2, scope="head"), Implicit(2, "head"), OneStep(2), Direct(2)],
    ids=["plain", "one-step", "every-second", "solved", "all", "direct"],
)
def test_recorded_outer_steps_equal_the_cpu(hypergradient, body_share):
    """The third and later outer steps are replays of a CUDA graph."""

    def found(device, compile):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(device, torch.float64)
        x, y = torch.randn(60, 6, dtype=torch.float64), torch.randint(0, 3, (60,))
        data = {"train": (x[:32].to(device), y[:32].to(device)), "val": (x[32:].to(device), y[32:].to(device))}
        outer, losses = GammaNet(8, 3), {"inner_loss": FocalWithGamma(body_share=body_share)}
        if hypergradient.direct:
            outer, losses = LogitMap(4).double(), {"outer_loss": BehindMap()}
        elif not hypergradient.moves:
            outer, losses = None, {}
        one = Bilevel(net, outer, batch_size=16, **data, **losses)
        rates = {"inner_optimizer": SGD(0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)}
        if hypergradient.moves:
            rates["outer_optimizer"] = Adam(0.02)
        return solve(one, hypergradient=hypergradient, outer_steps=8, compile=compile, **rates)

    expected = found("cpu", None)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not be recorded")
        recorded = found("cuda", "inductor")
    assert torch.allclose(recorded.params.cpu(), expected.params, rtol=1e-7, atol=1e-9)
    assert torch.allclose(recorded.phi.cpu(), expected.phi, rtol=1e-6, atol=1e-8)


class Views(nn.Module):
    """A network as in many tutorials: ``view`` fails on images in the channels-last format."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).view(-1, 64))


@pytest.mark.parametrize("method", ["recommended", "flg-sece"])
def test_fit_trains_a_network_with_views(method):
    torch.manual_seed(0)
    x, y = torch.randn(300, 1, 4, 4), torch.randint(0, 3, (300,))
    result = calibrant.fit(
        Views(), (x[:200], y[:200]), (x[200:], y[200:]), method=method, epochs=2, learning_rate=0.05, device="cuda"
    )
    assert torch.isfinite(result.probs(x)).all()


class Waits(nn.Linear):
    """A layer that reads a number from the GPU, which cannot be recorded."""

    def forward(self, x):
        return super().forward(x) * (1.0 if float(x.sum()) > -1e9 else 0.0)


class Synchronises(nn.Linear):
    """A layer that waits for the GPU in a way that torch does not report; recording it fails."""

    def forward(self, x):
        torch.cuda.synchronize()
        return super().forward(x)


class Counts(nn.Linear):
    """A layer that counts its calls in Python; a recording would freeze the count."""

    calls = 0

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x) * (1.0 if self.calls < 30 else 0.5)


class Half(nn.Linear):
    """A layer whose dropout is a function call."""

    def forward(self, x):
        return super().forward(torch.nn.functional.dropout(x, 0.5, self.training))


def trained_plainly(compile, layer=nn.Linear, optimizer=None, steps=24):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8), layer(8, 3)).to("cuda", torch.float64)
    x, y = torch.randn(50, 6, dtype=torch.float64).cuda(), torch.randint(0, 3, (50,)).cuda()
    one = Bilevel(net, train=(x, y), batch_size=16)  # the last batch of an epoch has two samples
    optimizer = optimizer or SGD(0.05, momentum=0.9)
    return solve(one, hypergradient=Plain(2), outer_steps=steps, inner_optimizer=optimizer, compile=compile).params


@pytest.mark.parametrize("optimizer", [SGD(0.05, momentum=0.9), AdamW(0.01, clip_norm=0.1)], ids=["sgd", "adamw"])
@pytest.mark.parametrize("layer", [nn.Linear, Waits, Counts, Replaces])
def test_plain_training_as_cuda_graphs_equals_eager_training(layer, optimizer):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*could not be recorded")
        recorded = trained_plainly("graphs", layer, optimizer)
    assert torch.allclose(recorded, trained_plainly(None, layer, optimizer), rtol=1e-7, atol=1e-9)


def test_a_loader_with_workers_runs_while_steps_are_recorded():
    """Its threads pin and copy batches, which must not end the recording."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(400, 6, dtype=torch.float64), torch.randint(0, 3, (400,)))

    def trained(compile):
        torch.manual_seed(0)
        net = nn.Linear(6, 3).to("cuda", torch.float64)
        one = Bilevel(net, train=DataLoader(data, batch_size=8, num_workers=2, pin_memory=True))
        settings = {"hypergradient": Plain(2), "inner_optimizer": SGD(0.05, momentum=0.9), "outer_steps": 60}
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*could not be recorded")
            return solve(one, **settings, compile=compile).params

    assert torch.allclose(trained("graphs"), trained(None), rtol=1e-7, atol=1e-9)


def test_restarted_steps_are_not_recorded():
    x, y = torch.randn(50, 6).cuda(), torch.randint(0, 3, (50,)).cuda()
    one = Bilevel(nn.Linear(6, 3).cuda(), train=(x, y))
    settings = {"hypergradient": Plain(2), "inner_optimizer": SGD(0.05), "outer_steps": 24, "restart": True}
    assert torch.allclose(solve(one, **settings, compile="graphs").params, solve(one, **settings).params)


def test_a_failed_recording_leaves_torch_as_it_was():
    with pytest.warns(UserWarning, match="could not be recorded"):
        recorded = trained_plainly("graphs", Synchronises)
    assert torch.allclose(recorded, trained_plainly(None, Synchronises), rtol=1e-7, atol=1e-9)
    assert torch.isfinite(torch.randn(10, device="cuda")).all()
    assert torch.isfinite(trained_plainly("graphs")).all()


def test_recorded_dropout_draws_new_numbers_that_can_be_repeated():
    first, second = trained_plainly("graphs", Half), trained_plainly("graphs", Half)
    assert torch.equal(first, second)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).cuda()
    x, y = torch.randn(40, 6).cuda(), torch.randint(0, 3, (40,)).cuda()
    history = History()
    solve(
        Bilevel(net, train=(x, y)),
        hypergradient=Plain(1),
        inner_optimizer=SGD(0.0),
        outer_steps=30,
        callbacks=[history],
        compile="graphs",
    )
    assert len(history["inner_loss"].flatten().unique()) > 25


@pytest.mark.parametrize("compile", ["graphs", None])
def test_a_resumed_run_gives_the_same_bits(compile, tmp_path):
    def trained(steps, **settings):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)).cuda()
        x, y = torch.randn(50, 6).cuda(), torch.randint(0, 3, (50,)).cuda()
        one = Bilevel(net, train=(x, y), batch_size=16)
        settings |= {"hypergradient": Plain(2), "inner_optimizer": AdamW(0.01), "compile": compile}
        return solve(one, outer_steps=steps, callbacks=[Checkpoint(tmp_path / "run", every=30)], **settings)

    whole = trained(60)
    trained(30)
    resumed = trained(60, resume=tmp_path / "run")
    assert torch.equal(resumed.params, whole.params)
    assert all(torch.equal(resumed.buffers[name], value) for name, value in whole.buffers.items())


def test_fit_holds_few_copies_of_the_parameters():
    """The user's network, the start, the trained vector, its gradient, its momentum, and the average."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 4))
    net.cuda()
    size = 4 * sum(p.numel() for p in net.parameters())
    x, y = torch.randn(3000, 64).cuda(), torch.randint(0, 4, (3000,)).cuda()
    before = torch.cuda.memory_allocated() - size
    torch.cuda.reset_peak_memory_stats()
    optimizer = SGD(0.01, momentum=0.9)
    calibrant.fit(net, (x[:2000], y[:2000]), (x[2000:], y[2000:]), epochs=3, optimizer=optimizer, precision="float32")
    assert torch.cuda.max_memory_allocated() - before < 8 * size
