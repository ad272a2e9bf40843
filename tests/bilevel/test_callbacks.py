"""Tests of callbacks: history, early stopping and the progress bar."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from calibrant.bilevel import (
    SGD,
    Bilevel,
    EarlyStopping,
    History,
    NonFiniteError,
    Plain,
    ProgressBar,
    SampleWeights,
    solve,
)
from tests.bilevel.loop_cases import SAMPLES, Spy, blobs, mlp, population, problem, run


def test_history_has_rows_of_steps_and_columns_of_members():
    for case, columns in ((problem(), ()), (population(), (3,))):
        history = History(phi_every=2)
        run(case, outer_steps=5, callbacks=[history])
        for name in ("inner_loss", "outer_loss", "gradient_norm"):
            assert history[name].shape == (5, *columns)
        assert history["phi"].shape == (3, *columns, SAMPLES)  # before the first step, and after 2 and 4
        assert torch.equal(history["phi"][0], case.initial_phi())


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


def test_early_stopping_stops_and_returns_to_the_best_step():
    values = [[5.0], [3.0], [4.0], [3.0], [2.99], [9.0]]  # 2.99 is no improvement by more than 0.1
    states, stopping = Spy(), EarlyStopping(scripted(values), patience=3, min_delta=0.1)
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
    states, stopping = Spy(), EarlyStopping(scripted([[1.0], [2.0], [3.0]]), patience=2, restore_best=False)
    solution = run(problem(), outer_steps=50, callbacks=[states, stopping])
    assert solution.outer_steps == 3
    assert torch.equal(solution.params, states.params[-1])


def test_without_patience_the_best_state_is_only_remembered():
    states, stopping = Spy(), EarlyStopping(scripted([[2.0], [1.0], [3.0], [4.0]]), patience=None)
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


def test_early_stopping_compares_one_batch_of_a_validation_loader():
    loader = DataLoader(TensorDataset(*blobs(100)), batch_size=5, shuffle=True)
    stopping = EarlyStopping()
    solution = run(problem(val=loader), callbacks=[stopping], outer_steps=6)
    assert solution.outer_steps == 6
    assert stopping.best.isfinite().all()


def test_members_stop_each_on_its_own():
    rows = [[1.0, 9.0, 5.0], [2.0, 8.0, 4.0], [3.0, 7.0, 6.0], [0.0, 6.0, 7.0], [0.0, 5.0, 0.0]]
    states, stopping = Spy(), EarlyStopping(scripted(rows), patience=2)
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


def test_the_progress_bar_writes_to_standard_error(capsys):
    run(problem(), outer_steps=3, callbacks=[ProgressBar("weights", force=True)])
    out, err = capsys.readouterr()
    assert out == ""
    assert "weights 3/3" in err
    run(population(), outer_steps=2, callbacks=[ProgressBar(force=True)])
    assert "3/3 members" in capsys.readouterr().err
    plain = {"hypergradient": Plain(2), "inner_optimizer": SGD(0.1), "outer_steps": 1}
    solve(problem(), callbacks=[ProgressBar(force=True)], **plain)
    assert "outer" not in capsys.readouterr().err
    x, y = blobs()
    with pytest.raises(NonFiniteError):
        run(problem(train=(x * float("nan"), y)), callbacks=[ProgressBar(force=True)])
    assert capsys.readouterr().err.endswith("\n")


def test_the_progress_bar_is_silent_off_a_terminal(capsys):
    run(problem(), callbacks=[ProgressBar()])
    assert capsys.readouterr() == ("", "")


def test_loaders_that_name_no_sample_are_refused():
    with pytest.raises(ValueError, match=r"calibrant\.data\.Indexed"):
        Bilevel(mlp(), SampleWeights(SAMPLES), train=DataLoader(TensorDataset(*blobs()), batch_size=4))


def test_steps_in_which_phi_waits_have_gradient_zero():
    history = History()
    run(problem(), start=0.5, callbacks=[history])
    gradients = history["gradient_norm"]
    assert gradients[0] == 0
    assert gradients[-1] > 0
