"""A callback for the Trainer of Hugging Face: a calibrated model when training ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from calibrant.base.warning import warn
from calibrant.methods.fit.calibrate import calibrate

if TYPE_CHECKING:
    from calibrant.methods.fit.trained import Trained


class TrainerCalibration(TrainerCallback):
    """Calibrate the trained model on the evaluation data when training ends.

    The Trainer must evaluate during training (``eval_strategy="epoch"``, for example), because it hands over its
    evaluation data only then. The scores on these data are too optimistic afterwards.

    Parameters
    ----------
    calibrator : str
        As in :func:`calibrant.calibrate`. "map", the default, chooses between a confidence map and a temperature.

    Attributes
    ----------
    result_ : Trained
        After training: the calibrated classifier, with ``probs(loader)``, ``save(path)`` and ``module``, a plain torch
        module whose logits are calibrated.

    Examples
    --------
    >>> callback = TrainerCalibration()                                            # doctest: +SKIP
    >>> Trainer(model, arguments, callbacks=[callback], ...).train()               # doctest: +SKIP
    >>> callback.result_.probs(test)                                               # doctest: +SKIP
    """

    def __init__(self, calibrator: str = "map") -> None:
        self.calibrator = calibrator
        self.result_: Trained | None = None

    def on_train_end(
        self, args: Any, state: Any, control: Any, *, model: Any = None, eval_dataloader: Any = None, **_: Any
    ) -> None:
        """Calibrate a copy of the model."""
        if eval_dataloader is None:
            warn(
                "The Trainer has not evaluated, so the model is not calibrated. Pass an eval_dataset and "
                'eval_strategy="epoch", or call calibrant.calibrate(model, loader, calibrator="map") yourself.'
            )
            return
        self.result_ = calibrate(model, eval_dataloader, calibrator=self.calibrator)
