"""Several processes of torch.distributed: training refuses them, and the Lightning callback gathers their shares."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant import bilevel

ROWS = 41
"""An odd number, so that DistributedSampler repeats one row to give two processes the same number."""


def outputs_of(commands, environments):
    """What processes print that run at the same time."""
    source = str(Path(calibrant.__file__).parents[1])
    root = str(Path(__file__).parents[2])
    common = {**os.environ, "PYTHONPATH": os.pathsep.join([source, root]), "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"}
    workers = [
        subprocess.Popen(command, env=common | own, stdout=subprocess.PIPE, text=True)
        for command, own in zip(commands, environments, strict=True)
    ]
    outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    return outputs


def train_by_fit():
    calibrant.fit(nn.Linear(2, 2), (torch.randn(20, 2), torch.arange(20) % 2))


def train_by_solve():
    problem = bilevel.Bilevel(nn.Linear(2, 2), train=(torch.randn(20, 2), torch.arange(20) % 2))
    bilevel.solve(problem, hypergradient=bilevel.Plain(1), inner_optimizer=bilevel.SGD(0.1), outer_steps=1)


@pytest.mark.parametrize("train", [train_by_fit, train_by_solve])
def test_training_is_refused_in_a_group(train, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(RuntimeError, match=r"trains in one process; .* group of 2 processes"):
        train()


def scores_of_lightning(devices):
    """The logged values and the calibrator of an untrained network on unequal labels."""
    lightning = pytest.importorskip("lightning.pytorch")
    from calibrant.integrations import CalibrationCallback

    class Still(lightning.LightningModule):
        """A network that training does not change."""

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 3)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, number):
            return self(batch[0]).mean()

        def validation_step(self, batch, number):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.0)

    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(ROWS, 3, generator=generator)
    torch.manual_seed(1)
    module = Still()
    even = torch.arange(ROWS) % 2 == 0  # the rows of rank 0
    labels = torch.where(even, module(x).argmax(1), torch.randint(3, (ROWS,), generator=generator))
    loader = DataLoader(TensorDataset(x, labels), batch_size=8)
    callback = CalibrationCallback()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, loader)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items() if "/" in name}
    if devices > 1:  # Lightning leaves the group open
        with pytest.raises(RuntimeError, match=r"calibrant\.fit trains in one process"):
            train_by_fit()
    return logged | {"result": callback.result_.temperature, "rows": len(trainer.val_dataloaders.sampler)}


@pytest.mark.slow
def test_two_processes_log_the_values_of_one():
    pytest.importorskip("lightning")
    script = "import json; from tests.integrations.test_processes import *; print(json.dumps(scores_of_lightning(2)))"
    command = [sys.executable, "-c", script]
    port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    ranks = [{**port, "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"} for rank in range(2)]
    shares = [json.loads(output.splitlines()[-1]) for output in outputs_of([command] * 2, ranks)]
    whole = scores_of_lightning(1)
    assert whole.pop("rows") == ROWS
    for share in shares:
        assert share.pop("rows") == ROWS // 2 + 1
        assert share == pytest.approx(whole, rel=1e-4)


def free_port():
    """A port that no other process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
