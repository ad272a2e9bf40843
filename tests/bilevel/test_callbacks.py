"""Tests of callbacks: history, early stopping and the progress bar."""

import builtins

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.bilevel import (
    SGD,
    Adam,
    Bilevel,
    Callback,
    EarlyStopping,
    History,
    NonFiniteError,
    Plain,
    ProgressBar,
    SampleWeights,
    solve,
)
from calibrant.data import TensorStream
from tests.bilevel.loop_cases import SAMPLES, blobs, mlp, population, problem, run


def test_history_has_a_row_an_outer_step():
    history = History(phi_every=2)
    run(problem(), outer_steps=5, callbacks=[history])
    assert history["inner_loss"].shape == history["outer_loss"].shape == history["gradient_norm"].shape == (5,)
    assert history["phi"].shape == (3, SAMPLES)  # before the first step, and after 2 and 4
    assert torch.equal(history["phi"][0], problem().initial_phi())


def test_history_of_a_population_has_a_column_a_member():
    history = History(phi_every=1)
    run(population(), outer_steps=2, callbacks=[history])
    assert history["inner_loss"].shape == history["outer_loss"].shape == history["gradient_norm"].shape == (2, 3)
    assert history["phi"].shape == (3, 3, SAMPLES)


def test_history_of_plain_training_has_no_outer_rows():
    history = History()
    solve(problem(), hypergradient=Plain(3), inner_optimizer=SGD(0.1), outer_steps=4, callbacks=[history])
    assert history["inner_loss"].shape == (4,)
    assert history["outer_loss"].numel() == history["gradient_norm"].numel() == history["phi"].numel() == 0


def test_a_reused_callback_starts_again():
    history, stopping = History(phi_every=1), EarlyStopping(scripted([[1.0], [0.5], [2.0], [3.0]]))
    run(problem(), outer_steps=2, callbacks=[history, stopping])
    run(problem(), outer_steps=2, callbacks=[history, stopping])
    assert len(history["inner_loss"]) == 2
    assert len(history["phi"]) == 3
    assert stopping.best.tolist() == [2.0]


def scripted(rows):
    """A criterion that reads its values from a list, one row per outer step."""
    rows = iter(rows)
    return lambda run: torch.tensor(next(rows))


class States(Callback):
    def __init__(self):
        self.params, self.phi = [], []

    def on_step(self, run):
        self.params.append(run.state.params)
        self.phi.append(run.phi)


def test_early_stopping_stops_and_returns_to_the_best_step():
    values = [[5.0], [3.0], [4.0], [3.0], [2.99], [9.0]]  # 2.99 is no improvement by more than 0.1
    states, stopping = States(), EarlyStopping(scripted(values), patience=3, min_delta=0.1)
    solution = run(problem(), outer_steps=50, callbacks=[states, stopping])
    assert solution.outer_steps == 5
    assert solution.reasons == {0: "no improvement for 3 outer steps"}
    assert stopping.best_step.tolist() == [2]
    assert torch.equal(solution.params, states.params[1])
    assert torch.equal(solution.phi, states.phi[1])


def test_a_criterion_of_nan_is_an_error():
    with pytest.raises(NonFiniteError, match="criterion of early stopping was NaN after outer step 2"):
        run(problem(), outer_steps=9, callbacks=[EarlyStopping(scripted([[1.0], [float("nan")]]))])
    rows = [[1.0, float("nan"), 1.0], [0.5, 0.1, 0.5]]
    solution = run(population(), outer_steps=2, callbacks=[EarlyStopping(scripted(rows))])
    assert set(solution.failures) == {1}
    assert "was NaN after outer step 1" in solution.failures[1]
    assert solution.params.isfinite().all()


def test_early_stopping_may_keep_the_last_state():
    states, stopping = States(), EarlyStopping(scripted([[1.0], [2.0], [3.0]]), patience=2, restore_best=False)
    solution = run(problem(), outer_steps=50, callbacks=[states, stopping])
    assert solution.outer_steps == 3
    assert torch.equal(solution.params, states.params[-1])


def test_without_patience_the_best_state_is_only_remembered():
    states, stopping = States(), EarlyStopping(scripted([[2.0], [1.0], [3.0], [4.0]]), patience=None)
    solution = run(problem(), outer_steps=4, callbacks=[states, stopping])
    assert solution.outer_steps == 4
    assert torch.equal(solution.params, states.params[1])


def test_early_stopping_evaluates_every_few_steps():
    asked = []

    def criterion(run):
        asked.append(run.step)
        return torch.tensor(float(run.step))

    solution = run(problem(), outer_steps=20, callbacks=[EarlyStopping(criterion, patience=4, every=2)])
    assert asked == [2, 4, 6]
    assert solution.outer_steps == 6


def test_the_default_criterion_is_the_outer_loss_after_training():
    case, stopping = problem(), EarlyStopping()
    solution = run(case, callbacks=[stopping], outer_steps=3)
    value = case.outer(solution.params, solution.buffers, solution.phi, case.val_batch(0))[0]
    assert torch.allclose(value, stopping.best, rtol=1e-12)


def test_early_stopping_compares_one_batch_of_a_validation_loader():
    loader = DataLoader(TensorDataset(*blobs(100)), batch_size=5, shuffle=True)
    stopping = EarlyStopping()
    solution = run(problem(val=loader), callbacks=[stopping], outer_steps=6)
    assert solution.outer_steps == 6
    assert stopping.best.isfinite().all()


def test_members_stop_each_on_its_own():
    rows = [[1.0, 9.0, 5.0], [2.0, 8.0, 4.0], [3.0, 7.0, 6.0], [0.0, 6.0, 7.0], [0.0, 5.0, 0.0]]
    states, stopping = States(), EarlyStopping(scripted(rows), patience=2)
    solution = run(population(), outer_steps=5, callbacks=[states, stopping])
    assert solution.reasons == {
        0: "no improvement for 2 outer steps",
        1: "all outer steps done",
        2: "no improvement for 2 outer steps",
    }
    assert stopping.best_step.tolist() == [1, 5, 2]  # values after a member stopped do not count
    for member, best in enumerate((0, 4, 1)):
        assert torch.equal(solution.params[member], states.params[best][member])
        assert torch.equal(solution.phi[member], states.phi[best][member])
    assert torch.equal(states.params[2][0], states.params[4][0])  # a stopped member rests


@pytest.mark.parametrize("rich", [True, False])
def test_the_progress_bar_writes_to_standard_error(rich, monkeypatch, capsys):
    if rich:
        pytest.importorskip("rich")
    else:
        real = builtins.__import__

        def fake(name, *args, **kwargs):
            if name.startswith("rich"):
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", fake)
    run(problem(), outer_steps=3, callbacks=[ProgressBar("weights", force=True)])
    out, err = capsys.readouterr()
    assert out == ""
    assert "weights" in err
    assert "3/3" in err
    run(population(), outer_steps=2, callbacks=[ProgressBar(force=True)])
    assert "3/3 members" in capsys.readouterr().err.replace("\n", " ")
    solve(
        problem(),
        hypergradient=Plain(2),
        inner_optimizer=SGD(0.1),
        outer_steps=1,
        callbacks=[ProgressBar(force=True)],
    )
    assert "outer" not in capsys.readouterr().err


def test_the_progress_bar_is_silent_off_a_terminal(capsys):
    run(problem(), callbacks=[ProgressBar()])
    assert capsys.readouterr() == ("", "")


def test_the_progress_bar_is_closed_after_an_error(capsys):
    x, y = blobs()
    bar = ProgressBar(force=True)
    with pytest.raises(NonFiniteError):
        run(problem(train=(x * float("nan"), y)), callbacks=[bar])
    assert bar._bar is None


def test_loaders_that_name_no_sample_are_refused():
    with pytest.raises(ValueError, match=r"calibrant\.data\.Indexed"):
        Bilevel(mlp(), SampleWeights(SAMPLES), train=DataLoader(TensorDataset(*blobs()), batch_size=4))


@pytest.mark.parametrize("form", ["mini-batches", "loader"])
def test_early_stopping_looks_at_all_validation_data(form):
    """The loss of all batches counts, not only that of the first."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 2, generator=generator), torch.randint(0, 2, (50,), generator=generator)
    whole = (x[20:], y[20:])
    val = DataLoader(TensorDataset(*whole), batch_size=8) if form == "loader" else TensorStream(*whole, batch_size=8)
    seen = []

    class Look(EarlyStopping):
        def _outer_loss(self, run):
            seen.append(super()._outer_loss(run).item())
            return super()._outer_loss(run)

    stopping = Look(patience=None, restore_best=False)
    problem = Bilevel(nn.Linear(2, 2), train=(x[:20], y[:20]), val=val)
    solution = solve(problem, hypergradient=Plain(2), inner_optimizer=Adam(0.1), outer_steps=2, callbacks=[stopping])
    expected = torch.nn.functional.cross_entropy(solution.logits(whole[0]), whole[1])
    assert seen[-1] == pytest.approx(expected.item(), abs=1e-6)


def test_steps_in_which_phi_waits_have_gradient_zero():
    history = History()
    run(problem(), start=0.5, callbacks=[history])
    gradients = history["gradient_norm"]
    assert gradients[0] == 0
    assert gradients[-1] > 0
