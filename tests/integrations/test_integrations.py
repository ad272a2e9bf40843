"""Tests of trackers, Lightning, torchmetrics and Hugging Face's Trainer on small data."""

from __future__ import annotations

import doctest
import re
import runpy
import types
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import calibrant
from calibrant import integrations, metrics
from calibrant.integrations import Tracker, trackers
from calibrant.methods import Samples
from calibrant.methods.fit import calibrate as after_training
from calibrant.methods.fit import guards as watching
from calibrant.models.functional.network import logits_of

ROOT = Path(__file__).parents[2]
NAMES = {"nll", "accuracy", "smooth_ece", "temperature", "nll_calibrated"}


def data(seed=0):
    torch.manual_seed(seed)
    x = torch.randn(90, 4)
    return (x[:60], (x[:60, 0] > 0).long()), (x[60:], (x[60:, 0] + torch.randn(30) > 0).long())


def fitted(tracker, networks=1):
    train, val = data()
    return calibrant.fit(nn.Linear(4, 2), train, val, epochs=30, networks=networks, callbacks=[tracker])


@pytest.mark.parametrize("module", [watching, after_training, trackers])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0


def test_a_function_sees_losses_validation_scores_and_the_result():
    seen = []
    result = fitted(Tracker(lambda values, step: seen.append((step, values)), every=2))
    steps = [step for step, _ in seen]
    assert steps == [2, 4, 6, 6]  # thirty steps, five to an outer step, and the end
    assert set(seen[0][1]) == {"train/loss"} | {f"val/{name}" for name in NAMES}
    end = seen[-1][1]
    assert set(end) == {"calibrated/nll", "calibrated/smooth_ece", "calibrated/accuracy", "calibrated/temperature"}
    x, y = data()[1]
    assert end["calibrated/nll"] == pytest.approx(float(metrics.nll(result.probs(x), y)))
    assert end["calibrated/temperature"] == result.temperature


def test_scores_use_the_weights_of_the_validation_data():
    train, (x, y) = data()
    weights = torch.arange(30) % 3  # as often as each row occurs
    rows = torch.repeat_interleave(torch.arange(30), weights)
    seen = []
    for val in (Samples(x, y, weights.double()), Samples(x[rows], y[rows])):
        tracker = Tracker(lambda values, step: seen.append(values))
        torch.manual_seed(0)
        calibrant.fit(nn.Linear(4, 2), train, val, method="standard", epochs=5, seed=0, callbacks=[tracker])
    weighted, repeated = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert [set(values) for values in weighted] == [set(values) for values in repeated]
    for one, other in zip(weighted, repeated, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_several_networks_have_their_own_names():
    seen = {}
    fitted(Tracker(lambda values, step: seen.update(values)), networks=2)
    assert {"train/loss", "network-1/train/loss", "network-1/val/nll", "calibrated/nll"} <= set(seen)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        fitted(Tracker(writer, every=3))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = {name: [e.value for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert len(scalars["train/loss"]) == 2
    assert {"val/smooth_ece", "calibrated/temperature"} <= set(scalars)


def test_mlflow_and_runs_with_a_log():
    calls = []

    def log_metrics(metrics, step=None, synchronous=None):  # as in MLflow
        calls.append((step, set(metrics)))

    fitted(Tracker(log_metrics, every=6))
    run = types.SimpleNamespace(log=log_metrics)  # as in Weights & Biases
    fitted(Tracker(run, every=6))
    assert [step for step, _ in calls] == [6, 6] * 2
    assert {"train/loss", "val/nll"} <= calls[0][1]


def test_objects_that_are_no_trackers():
    with pytest.raises(TypeError, match="must be a function"):
        Tracker(3)
    with pytest.raises(ValueError, match="every must be at least 1"):
        Tracker(print, every=0)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        integrations.Nothing  # noqa: B018


def test_torchmetrics_classes():
    torchmetrics = pytest.importorskip("torchmetrics")
    torch.manual_seed(0)
    logits, y = 2 * torch.randn(300, 3), torch.randint(0, 3, (300,))
    found = torchmetrics.MetricCollection(
        {"ece": integrations.ECE(), "classwise": integrations.ClasswiseECE(3), "smooth": integrations.SmoothECE()}
    )
    for rows in torch.arange(300).split(70):
        found.update(logits[rows].softmax(1), y[rows])
    values = found.compute()
    probs = logits.softmax(1)
    assert float(values["ece"]) == pytest.approx(float(metrics.ece(probs, y)))
    assert float(values["classwise"]) == pytest.approx(float(metrics.classwise_ece(probs, y)))
    assert float(values["smooth"]) == pytest.approx(float(metrics.smooth_ece(probs, y)))
    found.reset()
    assert found["smooth"].compute().isnan()
    found["smooth"].update(logits, y, from_logits=True)
    assert float(found["smooth"].compute()) == pytest.approx(float(values["smooth"]))


def run_example(name, capsys, **given):
    main = runpy.run_path(str(ROOT / "examples" / name))["main"]
    main(**given)
    return capsys.readouterr().out


def test_the_lightning_example(capsys):
    pytest.importorskip("lightning")
    out = run_example("lightning_callback.py", capsys, epochs=3)
    logged = dict(re.findall(r"calibration/(\w+): ([\d.]+)", out))
    assert set(logged) == NAMES
    before, after = (float(value) for value in re.findall(r"test NLL \w+: +([\d.]+)", out))
    assert after < before  # three epochs leave the network far too little sure
    assert "the calibrated module is a Digits" in out


def rows_of(x, y):
    return [{"input": row, "klass": label} for row, label in zip(x, y, strict=True)]


def test_a_part_of_a_lightning_module_can_be_named():
    lightning = pytest.importorskip("lightning.pytorch")
    train, val = data()

    class Module(lightning.LightningModule):
        """Its forward pass gives no logits."""

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 2)

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self.net(batch["input"]), batch["klass"])

        def validation_step(self, batch, number):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    def fit(**given):
        callback = integrations.CalibrationCallback(labels="klass", **given)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", callbacks=[callback], enable_model_summary=False, **quiet
        )
        trainer.fit(Module(), *(DataLoader(rows_of(*part), batch_size=20) for part in (train, val)))
        return callback

    assert fit(network="net", calibrator="map").result_.extras["confidence"]["kind"] == "temperature"
    callback = fit(network="net")
    assert type(callback.result_.module) is nn.Linear
    assert callback.result_.probs(val[0]).shape == (30, 2)
    with pytest.raises(ValueError, match="network must name a submodule, one of 'net'; got 'body'"):
        fit(network="body")


def test_the_hugging_face_example(capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    out = run_example("huggingface_trainer.py", capsys, samples=200, epochs=2)
    assert "eval_smooth_ece" in out
    assert float(re.search(r"largest difference to result.probs: (\S+)", out)[1]) < 1e-5


class Rows(Dataset):
    """Rows of numbers, as the Trainer of Hugging Face takes them."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 4, generator=generator)
        self.y = (self.x[:, 0] + torch.randn(count, generator=generator) > 0).long()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        return {"x": self.x[row], "labels": self.y[row]}


class WithLoss(nn.Module):
    """A network that returns its loss and logits."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"logits": logits} | ({} if loss is None else {"loss": loss})


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_callback_calibrates_in_the_trainer_of_hugging_face(tmp_path, evaluates):
    transformers = pytest.importorskip("transformers")
    callback = integrations.TrainerCalibration()
    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=1, per_device_train_batch_size=50, eval_strategy="epoch" if evaluates else "no",
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    model, val = WithLoss(), Rows(1100, 1)
    trainer = transformers.Trainer(model, arguments, train_dataset=Rows(200, 0), eval_dataset=val, callbacks=[callback])
    if not evaluates:
        with pytest.warns(UserWarning, match="has not evaluated"):
            trainer.train()
        assert callback.result_ is None
        return
    trainer.train()
    result = callback.result_
    assert result.extras["confidence"]["kind"] in ("map", "temperature")
    assert result.extras["confidence"]["gain"] is not None
    calibrated = logits_of(result.module(x=val.x)).softmax(1).double()
    torch.testing.assert_close(calibrated, result.probs({"x": val.x}), rtol=0, atol=1e-5)
    own = calibrant.calibrate(model, (val.x, val.y), calibrator="map")
    torch.testing.assert_close(own.probs(val.x), result.probs({"x": val.x}), rtol=0, atol=1e-6)
