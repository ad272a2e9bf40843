"""A callback for Lightning: calibration in the logs of every validation, and a calibrated module at the end."""

from __future__ import annotations

import functools
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DistributedSampler

from calibrant.data.streams.batch import map_tensors
from calibrant.methods.confidence import check_calibrator
from calibrant.methods.fit.calibrate import calibrate
from calibrant.methods.fit.guards import calibration_scores
from calibrant.models.functional.network import batch_format, call, logits_of
from calibrant.models.functional.user_modules import copied

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer

    from calibrant.methods.fit.trained import Trained
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise ImportError("CalibrationCallback needs Lightning. Install it with: pip install lightning.") from error


class CalibrationCallback(Callback):
    """Log how well a network is calibrated at every validation, and calibrate it when training ends.

    At the end of every validation the network predicts the first validation loader again, and ``calibration/nll``,
    ``calibration/smooth_ece``, ``calibration/accuracy``, ``calibration/temperature`` and ``calibration/nll_calibrated``
    are logged. Any other callback can monitor them.

    With several devices, logits and labels are gathered from all processes, so that the logged values and
    :attr:`result_` belong to all validation rows. Rows that a ``DistributedSampler`` repeats to give each process the
    same number are counted once.

    Parameters
    ----------
    network : str, optional
        The name of the submodule that gives logits. Default: the LightningModule itself, by its ``forward``.
    calibrator : str
        As in :func:`calibrant.calibrate`; "map" chooses between a confidence map and a temperature.
    labels : str, optional
        The name of the labels in batches that are mappings.
    prefix : str
        The prefix of the logged names.

    Attributes
    ----------
    result_ : Trained
        After training: the calibrated classifier, with ``probs(loader)``, ``save(path)`` and ``module``, a plain torch
        module whose logits are calibrated. It has the weights from the end of training. To calibrate a checkpoint, load
        it and call :func:`calibrant.calibrate`.

    Examples
    --------
    >>> from lightning.pytorch import Trainer                              # doctest: +SKIP
    >>> callback = CalibrationCallback()                                   # doctest: +SKIP
    >>> Trainer(max_epochs=5, callbacks=[callback]).fit(module, train, val)  # doctest: +SKIP
    >>> callback.result_.probs(test)                                       # doctest: +SKIP
    """

    def __init__(
        self,
        network: str | None = None,
        *,
        calibrator: str = "temperature",
        labels: str | None = None,
        prefix: str = "calibration/",
    ) -> None:
        super().__init__()
        check_calibrator(calibrator)
        self.network, self.calibrator, self.labels, self.prefix = network, calibrator, labels, prefix
        self.result_: Trained | None = None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the calibration of the current network."""
        if trainer.sanity_checking:
            return
        network = self._network(pl_module)
        form = batch_format(network, self.labels)
        logits, labels = [], []
        for batch in _loader(trainer):
            inputs, batch_labels, _ = form.read(batch)
            moved = map_tensors(lambda t: t.to(pl_module.device), inputs)
            with torch.no_grad():
                logits.append(logits_of(call(network, moved)).double().cpu())
            labels.append(torch.as_tensor(batch_labels, device="cpu"))
        scores = calibration_scores(*gathered(_loader(trainer), torch.cat(logits), torch.cat(labels)))
        values = {f"{self.prefix}{name}": value for name, value in scores.items()}
        pl_module.log_dict(values, sync_dist=True)  # equal in all processes; without it Lightning warns

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate a copy of the network on the validation data."""
        loader = _loader(trainer)
        if loader is not None:
            network = _detached(self._network(pl_module))
            gather = functools.partial(gathered, loader)
            self.result_ = calibrate(network, loader, calibrator=self.calibrator, labels=self.labels, gather=gather)

    def _network(self, module: LightningModule) -> nn.Module:
        if self.network is None:
            return module
        try:
            return module.get_submodule(self.network)
        except AttributeError:
            submodules = ", ".join(repr(name) for name, _ in module.named_children())
            raise ValueError(f"network must name a submodule, one of {submodules}; got {self.network!r}.") from None


def gathered(loader: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of all processes of torch.distributed, without those that a ``DistributedSampler`` repeats."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return logits, labels
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        places = sampler.rank + sampler.num_replicas * torch.arange(len(labels), device="cpu")
        first = places < len(cast(Sized, sampler.dataset))  # the sampler repeats rows at the end
        logits, labels = logits[first], labels[first]
    shares: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(shares, (logits, labels))
    all_logits, all_labels = zip(*shares, strict=True)
    return torch.cat(all_logits), torch.cat(all_labels)


def _loader(trainer: Any) -> Any:
    """The first validation loader; None without one."""
    loaders = trainer.val_dataloaders
    return loaders[0] if isinstance(loaders, list | tuple) else loaders


def _detached(network: nn.Module) -> nn.Module:
    """A copy of a network without its reference to the trainer."""
    attributes = network.__dict__
    links: dict[str, Any] = {name: attributes[name] for name in ("_trainer", "_fabric") if name in attributes}
    try:
        attributes.update(dict.fromkeys(links))
        return copied(network)
    finally:
        attributes.update(links)
