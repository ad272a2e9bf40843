"""Tests of ``calibrant.fit`` when it is interrupted: checkpoints, killed processes and Ctrl-C."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from torch import nn

import calibrant
from calibrant.bilevel import Callback
from calibrant.methods import Calibrated, Ensemble, Standard
from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.standard import VariedRates
from tests.estimators.own_cases import SHORT, small


class StopAfter(Callback):
    """Calls ``action`` after a number of outer steps, counted over all runs."""

    def __init__(self, steps, action):
        self.left, self.action = steps, action

    def on_step(self, run):
        self.left -= 1
        if self.left == 0:
            self.action()


class Crash(Exception):
    """Stands for a crash of the machine."""


def crash():
    raise Crash


@pytest.mark.parametrize("method", [Calibrated("temperature", AveragedNetwork(epochs=10)), SHORT])
@pytest.mark.parametrize(("name", "steps"), [("digits", 3), ("digits", 7), ("table", 2), ("languages", 2)])
def test_an_interrupted_run_resumes_with_the_same_result(tmp_path, name, method, steps):
    """Networks of a table train on folds side by side, others one after the other."""
    model, (train, val), test = small(name)
    folder = tmp_path / "checkpoints"

    def fit(action=lambda: None, **given):
        again = calibrant.fit(model, train, val, method=method, callbacks=[StopAfter(steps, action)], seed=1, **given)
        return again.probs(test.inputs)

    expected = fit()
    try:
        found = fit(crash, checkpoint=folder, checkpoint_seconds=0)
    except Crash:
        assert any(folder.iterdir())
        found = fit(checkpoint=folder, checkpoint_seconds=0)
    assert torch.equal(found, expected)
    assert not folder.exists()


def test_a_killed_process_goes_on(tmp_path):
    model, (train, val), test = small("digits")

    def fit(kill_after, **checkpoint):
        kill = StopAfter(kill_after, lambda: os.kill(os.getpid(), signal.SIGKILL))
        return calibrant.fit(model, train, val, method=SHORT, callbacks=[kill], **checkpoint).probs(test.inputs)

    checkpoint = {"checkpoint": tmp_path / "checkpoints", "checkpoint_seconds": 0}
    for steps in (3, 2):
        if not (child := os.fork()):
            try:
                fit(steps, **checkpoint)
            finally:
                os._exit(7)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert torch.equal(fit(99, **checkpoint), fit(99))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    net, method = nn.Linear(4, 2), Standard(epochs=40)
    with pytest.raises(Crash):
        calibrant.fit(
            net, (x, y), method=method, callbacks=[StopAfter(3, crash)], checkpoint=tmp_path, checkpoint_seconds=0
        )
    with pytest.raises(ValueError, match=r"other settings or data.*Delete the folder"):
        calibrant.fit(net, (x + 1, y), method=method, callbacks=[StopAfter(9, crash)], checkpoint=tmp_path)
    with pytest.raises(ValueError, match="must name a folder"):
        calibrant.fit(net, (x, y), method=method, checkpoint=__file__)


LONG = AveragedNetwork(epochs=200)


@pytest.fixture
def terminal():
    """Ctrl-C as in a terminal; a process that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("base", [LONG, Ensemble(LONG), VariedRates(LONG)])
def test_control_c_returns_the_best_so_far(base):
    model, (train, val), test = small("digits")
    press = StopAfter(12, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.warns(UserWarning, match="interrupted. The result is the best state so far"):
        result = calibrant.fit(model, train, val, method=Calibrated("temperature", base), callbacks=[press])
    assert len(result.networks) == 1  # members that were not begun are left out
    assert 0 < result.networks[0].outer_steps <= 13
    assert result.probs(test.inputs).isfinite().all()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("terminal")
def test_a_second_control_c_gives_up():
    model, (train, val), _ = small("digits")

    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        calibrant.fit(model, train, val, networks=1, callbacks=[StopAfter(2, twice)])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_progress_is_printed_without_a_terminal(capsys):
    x, y = torch.randn(60, 4), torch.arange(60) % 2
    calibrant.fit(nn.Linear(4, 2), (x, y), method=Standard(epochs=20), verbose=True)
    assert "training 100%, done, epoch 20 of 20, training loss" in capsys.readouterr().err
    calibrant.fit(nn.Linear(4, 2), (x, y), method=Standard(epochs=20))
    assert capsys.readouterr().err == ""
