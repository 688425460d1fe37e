# %% [markdown]
# # A plan in Hugging Face's Trainer
#
# Tune a small GPT-2, train a larger one at the same rate. What the plan gains is measured: the
# larger model trains twice at the rate of the small one, with the plan and with PyTorch's defaults.
# Needs `pip install transformers accelerate`.

# %% tags=["parameters"]
BASE = (32, 2)
WIDTH = 256
DEPTH = 8
LR = 2e-2
STEPS = 40

# %%
import tempfile

import torch
import transformers

import nfd


def gpt2(width, depth):
    """A GPT-2 over bytes, heads of 16."""
    config = transformers.GPT2Config(
        n_embd=width,
        n_layer=depth,
        n_head=width // 16,
        n_positions=32,
        vocab_size=256,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


text = (transformers.__doc__ or "") + (torch.nn.Module.__doc__ or "")  # comes with the libraries
windows = torch.tensor(list(text.encode()))[: len(text.encode()) // 32 * 32].view(-1, 32)
data = [{"input_ids": w, "labels": w} for w in windows]

# %% [markdown]
# The plan touches three lines: the initial weights, the optimizer, and a callback that refuses an
# optimizer without the plan's groups. Clipping over all tensors is off, as it would act differently
# at another size.


# %%
def trained(size, lr, planned):
    """The mean training loss of the second half of the steps."""
    transformers.set_seed(0)
    model = gpt2(*size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    callbacks = []
    if planned:
        plan = nfd.plan(model, BASE, rule="complete-p", make_model=gpt2)
        # the head is the embedding: its 1/m cannot be folded, and is inserted
        plan.apply_(model, seed=0)
        optimizer = plan.make_optimizer(model, lr=lr, weight_decay=0.1)
        callbacks = [nfd.integrations.TrainerCallback(plan)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=8,
            max_grad_norm=0.0,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
        )
        trainer = transformers.Trainer(
            model, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=callbacks
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return sum(losses[STEPS // 2 :]) / (STEPS - STEPS // 2)


# %%
print(f"small, lr {LR}: {trained(BASE, LR, planned=False):.3f}")
for planned in (False, True):
    loss = trained((WIDTH, DEPTH), LR, planned)
    print(f"large, lr {LR}, {'the plan' if planned else 'defaults'}: loss: {loss:.3f}")
