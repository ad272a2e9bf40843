"""Callbacks: history, early stopping, averages over a run, and the progress bar."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from calibrant.bilevel import (
    OUTER_LOSSES,
    SGD,
    Adam,
    Bilevel,
    Callback,
    Checkpoint,
    ConstantGamma,
    Direct,
    EarlyStopping,
    Feedback,
    FocalWithGamma,
    History,
    LogitMap,
    MovingAverage,
    NonFiniteError,
    Plain,
    Population,
    ProgressBar,
    SampleWeights,
    Unrolled,
    confidence_gap_loss,
    pooled,
    solve,
)
from calibrant.bilevel.variables.logits import BehindMap
from calibrant.losses import sece
from tests.bilevel.loop_cases import SAMPLES, Spy, blobs, mlp, population, problem, rich_mlp, run


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


@pytest.mark.parametrize("name", ["live_state", "state"])
def test_a_callback_may_replace_a_part_of_the_state(name):
    class Reset(Callback):
        def on_step(self, run):
            state = getattr(run, name)
            run.state = state._replace(moments=tuple(map(torch.zeros_like, state.moments)))

    settings = {"hypergradient": Plain(1), "outer_steps": 4}
    reset = solve(problem(), inner_optimizer=SGD(0.1, momentum=0.9), callbacks=[Reset()], **settings)
    assert torch.equal(reset.params, solve(problem(), inner_optimizer=SGD(0.1), **settings).params)


@pytest.mark.parametrize("name", ["live_state", "state"])
def test_a_callback_may_change_the_parameters_in_place(name):
    class Clamp(Callback):
        def on_step(self, run):
            params = getattr(run, name).params
            params.copy_(params.clamp(-0.2, 0.2))

    class Replace(Callback):
        def on_step(self, run):
            run.state = run.state._replace(params=run.state.params.clamp(-0.2, 0.2))

    settings = {"hypergradient": Plain(1), "inner_optimizer": SGD(0.5), "outer_steps": 4}
    clamped, replaced = (solve(problem(), callbacks=[kind()], **settings) for kind in (Clamp, Replace))
    assert torch.equal(clamped.params, replaced.params)


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


def normed(seed=0, **settings):
    """Blobs in small batches, and a network with running statistics."""
    return problem(rich_mlp(seed), seed=seed, **{"batch_size": 8, "val_batch_size": 7, **settings})


PLAIN = {"hypergradient": Plain(2), "inner_optimizer": SGD(0.2, momentum=0.9)}


class Steps(Callback):
    """Keeps the state and φ of every step."""

    def __init__(self):
        self.kept = []

    def on_step(self, run):
        self.kept.append(run.state.tensors() | {"phi": run.phi})


@pytest.mark.parametrize("outer", [True, False])
def test_the_average_is_exponential_and_becomes_the_result(outer):
    steps, average = Steps(), MovingAverage(0.2, every=2, start=0.3, outer=outer)
    one = normed(outer=LogitMap(4).double(), outer_loss=BehindMap())
    how = {"hypergradient": Direct(2), "inner_optimizer": SGD(0.2, momentum=0.9), "outer_optimizer": Adam(0.05)}
    solution = solve(one, outer_steps=10, callbacks=[steps, average], **how)
    found = {"params": solution.params, "phi": solution.phi} | {f"buffer.{k}": b for k, b in solution.buffers.items()}
    for part in ("params", "buffer.1.running_var", "phi"):
        first, *others = (steps.kept[k - 1][part] for k in (4, 6, 8, 10))
        expected = first
        for look, value in enumerate(others, 2):
            kept = min(0.2, look / (look + 9))
            expected = kept * expected + (1 - kept) * value
        if part == "phi" and not outer:
            expected = steps.kept[-1]["phi"]
        torch.testing.assert_close(found[part], expected, rtol=1e-12, atol=1e-12)
    name = "buffer.1.num_batches_tracked"
    assert found[name] == steps.kept[-1][name]


def test_an_average_survives_a_checkpoint(tmp_path):
    def callbacks():
        return [MovingAverage(start=0), Checkpoint(path, every=5)]

    path = tmp_path / "run.safetensors"
    whole = solve(normed(), outer_steps=8, callbacks=[MovingAverage(start=0)], **PLAIN)
    solve(normed(), outer_steps=5, callbacks=callbacks(), **PLAIN)
    again = solve(normed(), outer_steps=8, callbacks=callbacks(), resume=path, **PLAIN)
    assert torch.equal(whole.params, again.params)


@pytest.mark.parametrize("settings", [{"decay": 1.0}, {"decay": 0.0}, {"every": 0}, {"start": 1.0}])
def test_settings_of_the_average_are_checked(settings):
    with pytest.raises(ValueError, match=r"must be between|must be at least"):
        MovingAverage(**settings)


@pytest.mark.parametrize(("members", "loader"), [(None, False), (None, True), (2, False)])
def test_early_stopping_judges_pooled_predictions(members, loader):
    """SECE of all held-out samples at once, not the mean over batches of seven."""
    outer_loss = OUTER_LOSSES["sece"](strength=None, bandwidth=0.1)
    settings = {"outer_loss": outer_loss, "val_batch_size": None if loader else 7}
    single = [normed(seed, **settings) for seed in range(members or 1)]
    whole = [(one.val.whole.inputs, one.val.whole.targets) for one in single]
    if loader:
        single = [single[0].replicate(val=DataLoader(TensorDataset(*whole[0]), batch_size=7))]
    stopping = EarlyStopping(patience=None, restore_best=False)
    solution = solve(Population(single) if members else single[0], outer_steps=1, callbacks=[stopping], **PLAIN)
    for k, (inputs, labels) in enumerate(whole):
        own = solution.member(k) if members else solution
        expected = sece(own.logits(inputs), labels, bandwidth=0.1)
        torch.testing.assert_close(stopping.best[k], expected.double(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("members", [None, 2])
def test_a_criterion_of_all_logits_and_labels(members):
    seen = []

    def error(logits, labels):
        seen.append(len(labels))
        return (logits.argmax(1) != labels).double().mean()

    single = [normed(seed) for seed in range(members or 1)]
    stopping = EarlyStopping(pooled(error), patience=None, restore_best=False)
    solution = solve(Population(single) if members else single[0], outer_steps=1, callbacks=[stopping], **PLAIN)
    assert set(seen) == {SAMPLES}
    for k, one in enumerate(single):
        own = solution.member(k) if members else solution
        wrong = own.classes(one.val.whole.inputs) != one.val.whole.targets
        assert stopping.best[k] == wrong.double().mean()


def test_feedback_raises_gamma_while_confidence_is_above_accuracy():
    outer = {"outer": ConstantGamma(1.0), "inner_loss": FocalWithGamma(), "outer_loss": confidence_gap_loss()}
    one, history = normed(val_batch_size=None, **outer), History(phi_every=1)
    optimizers = {"inner_optimizer": Adam(0.05), "outer_optimizer": SGD(0.5)}
    solve(one, hypergradient=Feedback(3), outer_steps=12, callbacks=[history], **optimizers)
    gaps, gammas = history["outer_loss"], history["phi"].squeeze(1)
    torch.testing.assert_close(gammas[1:], (gammas[:-1] + 0.5 * gaps).clamp(0, 5), rtol=1e-9, atol=1e-12)
    assert gaps.any()


def test_decay_spares_biases_and_norms():
    one = normed()
    spared = SGD(0.1, weight_decay=0.5, decay_on="weights")
    bound = spared.bound(one.view.weight_mask, one.view.spread)
    values = one.view.unflatten(bound.update(one.start, (), torch.zeros_like(one.start), 1)[0])
    for name, before in one.view.unflatten(one.start).items():
        factor = 0.95 if before.dim() > 1 else 1.0
        torch.testing.assert_close(values[name], factor * before)
    with pytest.raises(ValueError, match="need the network"):
        spared.update(one.start, (), torch.zeros_like(one.start), 1)
    solve(one, hypergradient=Unrolled(2), inner_optimizer=spared, outer_optimizer=SGD(1.0), outer_steps=1)
