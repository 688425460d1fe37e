"""One small GPT from tuning to a larger run that is watched, goes wrong, and is saved.

python makers/watched_run.py                        # minutes; watched-run.md and its numbers, into --out
python makers/watched_run.py --page docs/howto      # writes the page there from makers/numbers; trains nothing

Stop it at any time: the same command continues from there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import shlex
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nfd
from nfd.core.files import prepare_directory, write_json, write_text

# ``nfd transfer makers/watched_run.py`` loads this file by its path.
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
from makers import watched_run_page  # noqa: E402

wide_gpt: Any = import_module("wide_gpt")

NUMBERS = Path(__file__).with_name("numbers") / "watched-run.json"
OUT = "out/watched"
STEPS = 40
EVERY = 4
WARM_UP = 4
# The step at which somebody reads the alerts.
READ = 8
WIDTH = 256
DEPTH = 4

Pair = tuple[Tensor, Tensor]


def make_model(width: int, depth: int) -> nn.Module:
    """A GPT over bytes."""
    model: nn.Module = wide_gpt.GPT(width, depth)
    return model


def batches() -> list[Pair]:
    """A batch of Python's own library for every step."""
    return list(wide_gpt.batches(STEPS))


# Bytes of a file that no network is trained on.
eval_batches = wide_gpt.held_out(4)


def schedule(step: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.55 + 0.45 * math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))


def train(
    plan: nfd.Plan,
    lr: float,
    check: Path,
    page: Path,
    *,
    wrong: bool = False,
    mend: bool = False,
    begin: int = 0,
) -> dict[str, Any]:
    """Train the larger network, and watch it.

    Args:
        plan: of the larger network.
        lr: tuned on the small one.
        check: the folder of the check that says what to expect.
        page: the path of the page that follows the run.
        wrong: whether the loop gives one rate to all groups.
        mend: whether it stops doing so when the alerts are read.
        begin: the batch to begin with.

    Returns:
        Losses of training, the loss on text that was held out, alerts, what the watch printed when
        they were read, and warnings.
    """
    model = plan.apply_(make_model(WIDTH, DEPTH), seed=0)
    optimizer = plan.make_optimizer(model, lr=lr)
    data = batches()[begin:]
    watch = nfd.Watch(model, plan, data[0][0], every=EVERY, expected=check)
    watch.listeners.append(partial(nfd.run_page, path=page, title="The larger run"))
    losses = list[float]()
    table = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for step, (ids, targets) in enumerate(data):
            for group in optimizer.param_groups:
                group["lr"] = lr * schedule(step) * (1.0 if wrong else group["lr_scale"])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(float(loss.detach()))
            if watch.step():
                print(watch.line, flush=True)
            if watch.alerts and not table and step + 1 >= READ:
                table = str(watch)
                wrong = wrong and not mend
    return {
        "losses": [round(loss, 4) for loss in losses],
        "held_out": round(held_out(model), 4),
        "alerts": [{"step": alert.step, "text": str(alert)} for alert in watch.alerts],
        "table": table,
        "line": watch.line,
        "warnings": [str(warning.message) for warning in warned],
    }


@torch.no_grad()
def held_out(model: nn.Module) -> float:
    """The loss on text that no network is trained on."""
    losses = [
        nn.functional.cross_entropy(model(ids).flatten(0, 1), to.flatten())
        for ids, to in eval_batches
    ]
    return float(torch.stack(losses).mean())


def shell(command: str) -> dict[str, Any]:
    """Run ``nfd ...`` here; returns what was typed and what it printed."""
    from nfd.cli import main as run

    words = [__file__ if word == "watched_run.py" else word for word in shlex.split(command)]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run(words[1:])
    print(f"$ {command}\n{printed.getvalue()}", flush=True)
    text = printed.getvalue().replace(__file__, "watched_run.py").rstrip()
    return {"command": command, "printed": text, "code": code}


def commands(out: Path, lr: float | None, small: bool) -> dict[str, str]:
    """What is typed before the larger run, by name."""
    rates = "0.004 0.008 0.016" if small else "0.002 0.004 0.008"
    seeds = 2 if small else 3
    steps = "2 4" if small else f"4 8 16 28 {STEPS}"
    return {
        "transfer": "nfd transfer watched_run.py --optimizer adamw --rules complete-p --lr "
        f"{rates} --widths 64 128 --depths 2 --seeds {seeds} --out {out}/transfer",
        "check": f"nfd check watched_run.py --optimizer adamw --rule complete-p --lr {lr} --widths "
        f"64 128 --depths 2 4 --seeds 2 --at {steps} --out {out}/check",
        "plan": "nfd plan watched_run.py --optimizer adamw --rule complete-p "
        f"--width {WIDTH} --depth {DEPTH} --base 64 2 --out {out}/plan",
    }


def main(out: Path, *, small: bool = False) -> None:
    """Do what is not done yet, and write the page."""
    prepare_directory(out)
    path = out / "watched-run.json"
    numbers: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def ask(name: str, question: Callable[[], Any]) -> Any:
        if name not in numbers:
            numbers[name] = question()
            write_json(path, numbers)
        return numbers[name]

    ask("transfer", lambda: shell(commands(out, None, small)["transfer"]))
    lr = ask("lr", lambda: best_rate(out / "transfer" / "result.json"))
    for name in ("check", "plan"):
        ask(name, partial(shell, commands(out, lr, small)[name]))
    plan = nfd.Plan.load(out / "plan" / "plan.json")
    run = partial(train, plan, lr, out / "check")
    ask("sound", lambda: run(out / "sound.html"))
    wrong = ask("wrong", lambda: run(out / "wrong.html", wrong=True))
    ask("mended", lambda: run(out / "mended.html", wrong=True, mend=True))
    begin = READ if wrong["alerts"] else 0
    ask("saved", lambda: run(out / "saved.html", begin=begin))
    model = make_model(WIDTH, DEPTH)
    factor = lr_scale_of("blocks.0.query.weight", plan, model, lr)
    setting = {
        "read": READ,
        "width": WIDTH,
        "depth": DEPTH,
        "every": EVERY,
        "out": str(out),
        "factor": factor,
    }
    ask("setting", lambda: setting)
    write_text(out / "watched-run.md", watched_run_page.page(numbers))


def lr_scale_of(name: str, plan: nfd.Plan, model: nn.Module, lr: float) -> float:
    """The factor of a plan on the learning rate of a parameter."""
    parameter = model.get_parameter(name)
    for group in plan.param_groups(model, lr=lr):
        if any(p is parameter for p in group["params"]):
            return float(group["lr_scale"])
    raise ValueError(f"The plan has no group for {name}.")


def best_rate(result: Path) -> float:
    """The best learning rate of the smallest network, to two digits."""
    table = json.loads(result.read_text())["table"]
    best = next(row["value"] for row in table if row["quantity"] == "best lr")
    return float(f"{best:.2g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(OUT))
    parser.add_argument(
        "--page", type=Path, help="a folder: write the page there, from stored numbers"
    )
    parser.add_argument("--small", action="store_true", help="fewer rates and steps")
    a = parser.parse_args()
    if a.page is None:
        main(a.out, small=a.small)
    else:
        numbers = json.loads(NUMBERS.read_text())
        write_text(a.page / "watched-run.md", watched_run_page.page(numbers))
