"""A plan in Hugging Face's Trainer: tune a small GPT-2, train a larger one at the same rate.

python examples/plan_with_trainer.py
"""

from __future__ import annotations

import argparse
import tempfile

import torch
import transformers

import nfd

TEXT = (transformers.__doc__ or "") + (torch.nn.Module.__doc__ or "")


def gpt2(width: int, depth: int) -> transformers.GPT2LMHeadModel:
    """A GPT-2 over bytes, heads of 16."""
    config = transformers.GPT2Config(
        n_embd=width, n_layer=depth, n_head=width // 16, n_positions=32, vocab_size=256, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def data() -> list[dict[str, torch.Tensor]]:
    """Windows of 32 bytes of a text that comes with the libraries."""
    ids = torch.tensor(list(TEXT.encode()))
    windows = ids[: len(ids) // 32 * 32].view(-1, 32)
    return [{"input_ids": w, "labels": w} for w in windows]


def main(width: int = 64, depth: int = 4, steps: int = 20) -> float:
    """Train with AdamW groups from the plan; returns the mean training loss."""
    model = gpt2(width, depth)
    plan = nfd.plan(model, rule="complete-p", make_model=gpt2, base=(32, 2))
    plan.apply_(model, seed=0)  # the head is the embedding: its 1/m cannot be folded, and is inserted
    optimizer = plan.make_optimizer(model, lr=3e-3, weight_decay=0.1)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=8,
            max_grad_norm=0.0,  # a clip over all tensors would act differently at another size
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=data(),
            optimizers=(optimizer, None),
            callbacks=[nfd.integrations.TrainerCallback(plan)],  # refuses an optimizer without the plan's groups
        )
        return float(trainer.train().training_loss)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, value in (("width", 64), ("depth", 4), ("steps", 20)):
        parser.add_argument(f"--{option}", type=int, default=value)
    print(f"mean training loss: {main(**vars(parser.parse_args())):.3f}")
