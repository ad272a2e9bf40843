"""Common tests of all methods and of jobs in other processes; a new method is one more row of METHODS."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from dataclasses import fields, replace

import joblib
import pytest
import torch

import calibrant
import calibrant.methods.core.method
from calibrant.bilevel import OUTER_LOSSES, NonFiniteError, averaged, composed
from calibrant.losses.classification import brier
from calibrant.methods import (
    BO4SC,
    METHODS,
    Calibrated,
    Ensemble,
    Method,
    Samples,
    SelfCalibrated,
    Standard,
    Task,
    fit_all,
)
from calibrant.methods.core.jobs import ROWS_AT_ONCE
from calibrant.methods.core.task import total_steps
from tests.blobs import blobs


def task(seed=0, train=60, val=30, std=3.0, dtype=torch.float32, val_part=True):
    data = blobs(train + val, std, seed=seed)
    x, y = torch.tensor(data.inputs / 8, dtype=dtype), torch.tensor(data.labels)
    held = Samples(x[train:], y[train:]) if val_part else None
    return Task(Samples(x[:train], y[:train]), held, 5, seed)


def short(method: Method, epochs=20, hidden=(8,)) -> Method:
    """The method with a small network and few steps."""
    if isinstance(method, Ensemble | Calibrated):
        return replace(method, base=short(method.base, epochs, hidden))
    own = {f.name for f in fields(method)}
    return replace(method, **{k: v for k, v in {"epochs": epochs, "hidden": hidden}.items() if k in own})


def diverging(method: Method) -> Method:
    """The method with an inner learning rate that no network survives."""
    if isinstance(method, Ensemble | Calibrated):
        return replace(method, base=diverging(method.base))
    return replace(method, learning_rate=1e30)


@pytest.mark.parametrize("name", METHODS)
def test_it_gives_the_same_probabilities_again_and_when_sent(name):
    method = short(METHODS[name].method)
    assert pickle.loads(pickle.dumps(method)) == method
    fitted, again = (method.fit(task()) for _ in range(2))
    sent = pickle.loads(pickle.dumps(fitted))
    probs = fitted.probs(task(1).train.inputs)
    assert probs.shape == (60, 5)
    assert torch.allclose(probs.sum(1), torch.ones(60, dtype=probs.dtype), atol=1e-6)
    assert all(torch.equal(probs, other.probs(task(1).train.inputs)) for other in (again, sent))
    assert sent.extras.keys() == fitted.extras.keys()
    assert fitted.failure is None


@pytest.mark.filterwarnings("ignore:Every calibration sample is classified correctly")
@pytest.mark.parametrize("name", METHODS)
def test_it_learns(name):
    """At the settings that the table of methods holds: eight units and few steps are too few for dropout.

    The clouds do not touch, so that every method that learns is nearly always right; chance is 0.2.
    """
    fitted = METHODS[name].method.fit(task(std=0.4))
    test = task(7, std=0.4).train
    assert (fitted.probs(test.inputs).argmax(1) == test.labels).double().mean() > 0.8


@pytest.mark.parametrize("name", METHODS)
def test_many_jobs_at_once_equal_single_ones(name):
    """In float64 and for few steps, because rounding errors grow along a trajectory of Adam."""
    method = short(METHODS[name].method, epochs=10)
    tasks = [task(seed, dtype=torch.float64) for seed in range(3)]
    together = fit_all([(method, t) for t in tasks])
    for one, found in zip(tasks, together, strict=True):
        x = one.train.inputs
        assert torch.allclose(method.fit(one).probs(x), found.probs(x), atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("number", [1, 2])
def test_failed_training_is_a_value_among_jobs_alone_an_error(name, number):
    method = diverging(short(METHODS[name].method))
    with pytest.raises(NonFiniteError, match="not finite"):
        method.fit(task())
    for fitted in fit_all([(method, task(seed)) for seed in range(number)]):
        assert "not finite" in fitted.failure
        assert fitted.probs(task().val.inputs).shape == (30, 5)


def test_one_failed_job_ends_neither_the_others_nor_their_clock():
    watched = []

    @contextmanager
    def watch(positions):
        yield
        watched.extend(positions)

    good = short(Standard())
    broken, sound = fit_all([(diverging(short(BO4SC())), task()), (good, task())], on_group=watch)
    assert watched == [0, 1]
    x = task().val.inputs
    assert broken.probs(x).isnan().all()
    assert broken.extras == {}
    assert torch.equal(sound.probs(x), good.fit(task()).probs(x))


def test_jobs_of_every_kind_mix_and_keep_their_order():
    tasks = [task(0), task(1), task(0, train=50)]
    methods = [short(Standard()), short(BO4SC()), short(Standard(), hidden=(4,)), short(Standard(gamma=1.0))]
    jobs = [(m, t) for t in tasks for m in methods]
    for (method, own), fitted in zip(jobs, fit_all(jobs), strict=True):
        assert torch.allclose(fitted.probs(own.train.inputs), method.fit(own).probs(own.train.inputs), atol=1e-3)


def test_settings_that_vary_run_in_one_population():
    groups = []

    @contextmanager
    def watch(positions):
        groups.append(positions)
        yield

    first = short(BO4SC())
    varied = ((1e-2, 10.0, 30.0, 20), (1e-3, 100.0, 10.0, 10), (1e-2, 10.0, 30.0, 10))
    jobs = [
        (replace(first, learning_rate=lr, outer_learning_rate=rate, alpha=alpha, epochs=epochs), task())
        for lr, rate, alpha, epochs in varied
    ]
    together = fit_all(jobs, on_group=watch)
    assert groups == [[0, 1, 2]]
    for (method, own), fitted in zip(jobs, together, strict=True):
        alone = method.fit(own)
        assert torch.allclose(alone.extras["sample_weights"], fitted.extras["sample_weights"], atol=1e-4)


def test_early_stopping_returns_to_the_best_validation_loss():
    hard = task(std=4.0)
    stopped = Standard(hidden=(32,), epochs=400, patience=50).fit(hard)
    trained = Standard(hidden=(32,), epochs=400).fit(hard)

    def loss(fitted):
        probs = fitted.probs(hard.val.inputs)
        return -probs.gather(1, hard.val.labels[:, None]).log().mean()

    assert loss(stopped) < loss(trained)


def test_a_calibrator_behind_a_trained_network_equals_training_both():
    method, own = short(METHODS["temperature"].method), task()
    base = method.base.fit(own)
    x = own.val.inputs
    assert torch.equal(method.calibrate(base, own).probs(x), method.fit(own).probs(x))


def test_sample_weights_of_zero_leave_samples_out():
    full = task()
    weights = torch.ones(60)
    weights[40:] = 0
    weighted = replace(full, train=Samples(full.train.inputs, full.train.labels, weights))
    cut = replace(full, train=full.train[slice(0, 40)])
    x = full.val.inputs
    a, b = (Standard(hidden=(8,), epochs=20).fit(t).probs(x) for t in (weighted, cut))
    assert torch.allclose(a, b, atol=1e-4)


def test_mini_batches_above_the_limit():
    large = task(train=5000, val=100)
    for method in (
        Standard(hidden=(8,), epochs=2),
        BO4SC(hidden=(8,), epochs=2),
        SelfCalibrated(hidden=(8,), epochs=2, folds=2),
    ):
        assert torch.isfinite(method.fit(large).probs(large.val.inputs)).all()


IMPOSSIBLE = [
    (BO4SC, {"weights": None}, "also must name"),
    (BO4SC, {"weights": "network"}, "weights must be"),
    (BO4SC, {"weights": None, "also": ("l2",), "initial_weight": 0.5}, "initial_weight must be left out"),
    (BO4SC, {"inner": "lbfgs"}, "inner must be"),
    *((BO4SC, {"also": also}, "also must") for also in ("l2", None, ("l2", "l2"), ("l2", "l2-unit"), ("l3",))),
    (BO4SC, {"steps": 0}, "steps, the T"),
    (BO4SC, {"prior_strength": 1.0}, "prior_strength must be left out"),
    (BO4SC, {"outer_loss": "nll", "alpha": 100.0}, "alpha must be left out"),
    (BO4SC, {"last": 3}, "last must be left out"),
    (BO4SC, {"hypergradient": "implicit", "last": 3}, "last must be left out"),
    (BO4SC, {"damping": 0.1}, "damping must be left out"),
    (BO4SC, {"hypergradient": "implicit", "damping": -1.0}, "damping must be at least 0"),
    (BO4SC, {"also_learning_rate": 0.1}, "also_learning_rate must be left out"),
    (SelfCalibrated, {"folds": 1}, "folds must be at least 2"),
    *((SelfCalibrated, {name: 0}, f"{name} must be at least 1; got 0") for name in ("repeats", "steps", "last")),
    (SelfCalibrated, {"choose": 1.0}, "choose must lie strictly between 0 and 1"),
    (SelfCalibrated, {"embedding": "fourier"}, "embedding must be 'piecewise', 'linear' or None"),
]


@pytest.mark.parametrize(("kind", "settings", "sentence"), IMPOSSIBLE)
def test_settings_that_make_no_sense_are_refused(kind, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind(**settings)


def test_settings_that_change_something_are_taken():
    BO4SC(alpha=100.0, hypergradient="truncated", last=3, also=("l2",), also_learning_rate=0.1, form="sigmoid")
    BO4SC(hypergradient="implicit", damping=0.1, weights="prior", prior_strength=1.0)
    BO4SC(outer_loss="nll", alpha=BO4SC.alpha, last=BO4SC.last)  # a default looks like an omitted value


@pytest.mark.parametrize(("rows", "size", "expected"), [(700, None, 1200), (5000, 512, 1200), (50_000, 512, 20 * 98)])
def test_the_default_is_1200_steps_or_at_least_20_epochs(rows, size, expected):
    batches = 1 if size is None else -(-rows // size)
    assert total_steps(batches, None) == expected
    assert total_steps(batches, 3) == 3 * batches


def test_memory_goes_by_the_batches_of_the_networks_inside():
    large = task(train=5000, val=10)
    assert Standard(batch_size=100).rows_at_once(large) == 100
    assert Calibrated("temperature", Standard(batch_size=100)).rows_at_once(large) == 100
    assert Ensemble(Standard(batch_size=100), members=3).rows_at_once(large) == 300


def test_methods_that_need_validation_data_say_so():
    with pytest.raises(ValueError, match="X_val"):
        short(BO4SC()).fit(task(val_part=False))


def test_large_populations_are_trained_in_pieces(monkeypatch):
    monkeypatch.setitem(ROWS_AT_ONCE, "cpu", 130)
    sizes = []

    @contextmanager
    def watch(positions):
        sizes.append(len(positions))
        yield

    method, tasks = short(Standard()), [task(seed) for seed in range(5)]
    found = fit_all([(method, t) for t in tasks], on_group=watch)
    assert sizes == [2, 2, 1]
    for own, fitted in zip(tasks, found, strict=True):
        assert torch.allclose(fitted.probs(own.val.inputs), method.fit(own).probs(own.val.inputs), atol=1e-3)


def test_small_networks_of_a_method_are_recorded_by_default(monkeypatch):
    """Networks of the user run eagerly, unless ``compile`` is given."""
    asked, solve = [], calibrant.methods.core.method.solve

    def watched(*args, compile, **given):
        asked.append(compile)
        return solve(*args, compile=None, **given)

    monkeypatch.setattr(calibrant.methods.core.method, "solve", watched)
    own, method = task(), short(Standard(), epochs=2)
    theirs = replace(own, model=lambda seed: torch.nn.Linear(2, own.n_classes))
    for given, options in ((own, {}), (theirs, {}), (own, {"compile": None}), (theirs, {"compile": "trace"})):
        method.fit(given, **options)
    assert asked == ["trace", None, None, "trace"]


def jobs(*methods):
    """A population of two for each method, in float64, because threads may round in another order."""
    return [(short(m, epochs=6), task(seed, dtype=torch.float64)) for m in methods for seed in range(2)]


FEW = jobs(Standard(), diverging(BO4SC()))
MANY = jobs(Standard(), BO4SC(), SelfCalibrated(folds=2), Calibrated("temperature"), diverging(BO4SC(steps=3)))


def same(plan, found):
    for (_, own), one, other in zip(plan, found, fit_all(plan), strict=True):
        assert (one.failure is None) == (other.failure is None)
        if other.failure is None:
            torch.testing.assert_close(one.probs(own.val.inputs), other.probs(own.val.inputs), atol=1e-8, rtol=0)


def test_processes_give_the_results_of_a_serial_run():
    with joblib.parallel_config(backend="loky", n_jobs=2):
        found = fit_all(FEW, callbacks=lambda description: [])
    same(FEW, found)


@pytest.mark.slow
def test_ray_gives_the_results_of_a_serial_run():
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        register_ray()
        with joblib.parallel_config(backend="ray", n_jobs=2):
            found = fit_all(MANY)
    finally:
        ray.shutdown()
    same(MANY, found)


def test_threads_are_refused():
    with (
        joblib.parallel_config(backend="threading", n_jobs=2),
        pytest.raises(ValueError, match="cannot run as threads"),
    ):
        fit_all(FEW)


@pytest.mark.parametrize(
    "make",
    [
        *OUTER_LOSSES.values(),
        composed,
        averaged,
        lambda: composed(brier),
        Standard(gamma=1.0).inner_loss,
    ],
)
def test_losses_are_values(make):
    assert make() == make()
    assert pickle.loads(pickle.dumps(make())) == make()
    assert hash(make()) == hash(make())
