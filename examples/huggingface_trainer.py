"""Calibrate a model trained with Hugging Face's Trainer: ``python examples/huggingface_trainer.py``.

A tiny BERT with random weights learns synthetic reviews, so nothing is downloaded. ``compute_metrics`` shows the
calibration after every epoch. Then `calibrant.calibrate` fits a temperature and returns a model of the same class with
the temperature in its last layer. `save_pretrained` writes it like any other model.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

import calibrant
from calibrant import metrics
from calibrant.integrations import calibration_scores

WORDS, LENGTH = 30, 12


class Reviews(Dataset):
    """Sentences of random words, padded. Each word has a score, and the sum of scores makes a good review likely."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(WORDS, generator=torch.Generator().manual_seed(0))
        lengths = torch.randint(4, LENGTH + 1, (count,), generator=generator)
        self.mask = (torch.arange(LENGTH) < lengths[:, None]).long()
        self.words = torch.randint(1, WORDS, (count, LENGTH), generator=generator) * self.mask
        chances = torch.sigmoid((scores[self.words] * self.mask).sum(1))
        self.labels = torch.bernoulli(chances, generator=generator).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[row], "attention_mask": self.mask[row], "labels": self.labels[row]}


def scores(prediction: EvalPrediction) -> dict[str, float]:
    return calibration_scores(prediction.predictions, prediction.label_ids)


def main(samples: int = 800, epochs: int = 10) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    train, val, test = Reviews(samples, 1), Reviews(500, 2), Reviews(2000, 3)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=256,
            learning_rate=5e-3,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=0,
        )
        trainer = Trainer(
            BertForSequenceClassification(config),
            arguments,
            train_dataset=train,
            eval_dataset=val,
            compute_metrics=scores,
        )
        trainer.train()
        loader = DataLoader(val, batch_size=256, collate_fn=default_data_collator)
        result = calibrant.calibrate(trainer.model, loader)
        result.module.save_pretrained(Path(folder) / "calibrated")
        again = BertForSequenceClassification.from_pretrained(Path(folder) / "calibrated").eval()

    inputs = {"input_ids": test.words, "attention_mask": test.mask}
    with torch.no_grad():
        before = trainer.model.eval()(**inputs).logits
        after = again(**inputs).logits
    print(f"temperature: {result.temperature:.3f}")
    print(f"test NLL before: {metrics.nll(before, test.labels, from_logits=True):.4f}")
    print(f"test NLL after:  {metrics.nll(after, test.labels, from_logits=True):.4f}")
    print(f"largest difference to result.probs: {(after.softmax(1) - result.probs(inputs)).abs().max():.1e}")


if __name__ == "__main__":
    main()
