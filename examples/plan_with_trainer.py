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

import altair as alt
import torch
import transformers

import nfd

alt.renderers.enable("png")


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

# %%
nfd.plan(gpt2(WIDTH, DEPTH), BASE, rule="complete-p", make_model=gpt2)

# %% [markdown]
# The plan touches three lines: the initial weights, the optimizer, and a callback that refuses an
# optimizer without the plan's groups. Clipping over all tensors is off, as it would act differently
# at another size.


# %%
def trained(size, lr, planned):
    """The training loss at every step."""
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
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def late(losses):
    """The mean loss of the second half of the steps."""
    return sum(losses[STEPS // 2 :]) / (STEPS - STEPS // 2)


# %%
curves = {"small": trained(BASE, LR, planned=False)}
print(f"small, lr {LR}: {late(curves['small']):.3f}")
for planned in (False, True):
    name = "the plan" if planned else "defaults"
    curves[f"large, {name}"] = trained((WIDTH, DEPTH), LR, planned)
    print(f"large, lr {LR}, {name}: loss: {late(curves[f'large, {name}']):.3f}")

# %% [markdown]
# At the small one's rate the large network with the defaults falls behind the small one.

# %%
rows = []
for name, losses in curves.items():
    rows += [{"network": name, "step": k, "loss": loss} for k, loss in enumerate(losses)]
colours = alt.Scale(domain=[*curves], range=["#5c6570", "#c4500c", "#0067a5"])
alt.Chart(alt.InlineData(rows)).mark_line(clip=True).encode(
    x="step:Q",
    y=alt.Y("loss:Q", scale=alt.Scale(zero=False), title="training loss (nats per byte)"),
    color=alt.Color("network:N", sort=None, title=None, scale=colours),
).properties(width=480, height=260, title="One rate, found at the small size")
