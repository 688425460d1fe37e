"""Commands and what they rest on: the study, plans and checks, sweeps, pages."""

from __future__ import annotations

import tempfile
import time
from functools import lru_cache
from pathlib import Path

import torch
import vl_convert
from torch import Tensor, nn

import nfd
from benchmarks.measure import Round, Row, apart, seconds
from benchmarks.ratio import Ratio
from nfd.core.machine import peak_memory, threads
from nfd.data import digits
from nfd.paper.findings import findings, study_report
from nfd.paper.settings import StudyConfig
from nfd.paper.study import Study
from nfd.report.charts import chart_of

# ---- the study ------------------------------------------------------------------------------------------------


def small_study() -> Study:
    """A study that takes seconds, every unit of a real one in it."""
    return Study(
        StudyConfig(
            depths=(4, 8), limit_width=1024, replicates=3, widths=(64, 256), seeds=2, block_depths=(8, 16),
            block_seeds=2, steps=10,
        )
    )  # fmt: skip


def measured(study: Study) -> Study:
    """The study once every network of it is trained, in this process."""
    study.measure(nfd.Sweep(progress=False))
    return study


def study_run() -> list[float]:
    """Seconds, peak memory in bytes and the share of its longest unit, of ``nfd paper study`` at its defaults."""
    start = time.perf_counter()
    study = measured(Study(StudyConfig()))
    with tempfile.TemporaryDirectory() as folder:
        study_report(study, findings(study), "nfd paper study").write(Path(folder))
    took = time.perf_counter() - start
    return [took, peak_memory(), max(study.measured.seconds.values()) / took]


def study(turn: Round) -> list[Row]:
    """The study at its defaults, once."""
    if turn.quick or turn.number:
        return []
    took, peak, longest = apart("benchmarks.commands:study_run()")
    return [
        {
            "study": "at its defaults, page included",
            "seconds": took,
            "peak memory, GiB": peak / 2**30,
            "longest unit / whole": longest,
        }
    ]


def page(turn: Round) -> list[Row]:
    """The page and the files of a study, against the renderer alone: each chart once as PDF and once as PNG."""
    study = _measured_study()
    found = findings(study)[: 2 if turn.quick else None]
    specs = [chart_of(finding).properties(width=640).to_dict() for finding in found]

    def drawn() -> None:
        for spec in specs:
            vl_convert.vegalite_to_pdf(spec)
            vl_convert.vegalite_to_png(spec, scale=2)

    def written() -> None:
        with tempfile.TemporaryDirectory() as folder:
            study_report(study, found, "nfd paper study").write(Path(folder))

    if turn.number == 0:
        drawn()
    ours, alone = seconds(written), seconds(drawn)
    return [{"charts": len(found), "page and files, s": ours, "drawing alone / ours": Ratio.of(alone / ours)}]


@lru_cache
def _measured_study() -> Study:
    return measured(small_study())


# ---- plans and checks -----------------------------------------------------------------------------------------


class _Block(nn.Module):
    """A block of a Transformer that no family is known by, so that its roles are found by measurement."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """The stream with both branches added."""
        x = self.first(h)
        h = h + self.attention(x, x, x, need_weights=False)[0]
        out: Tensor = h + self.down(torch.relu(self.up(self.second(h))))
        return out


def transformer(width: int, depth: int) -> nn.Module:
    """Twelve tensors per block."""
    blocks = nn.Sequential(*[_Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(16, width), blocks, nn.LayerNorm(width), nn.Linear(width, 10))


def planning(turn: Round) -> list[Row]:
    """A plan of a Transformer by a trace, against one forward and backward pass of the model itself."""
    depth = 16 if turn.quick else 77
    model, sample = transformer(64, depth), torch.randn(2, 8, 16)

    def once() -> None:
        model(sample).square().mean().backward()

    once()
    took = seconds(lambda: nfd.plan(model, rule="complete-p", make_model=transformer, base=(32, 2), sample=sample))
    step = seconds(once)
    tensors = len(list(model.parameters()))
    return [
        {
            "model": "Transformer, measured",
            "tensors": tensors,
            "plan, s": took,
            "forward and backward, s": step,
            "plan / forward and backward": Ratio.of(took / step, less_is_better=True),
        }
    ]


def checking(turn: Round) -> list[Row]:
    """A check of the paper's two-layer network against training the same networks and nothing else."""
    depths, steps, batch, seeds = ((4, 8), 5, 32, 2) if turn.quick else ((4, 8, 16, 32, 64), 20, 128, 2)
    x, y = digits().batches(batch, steps, 0)
    batches = list(zip(x, y, strict=True))

    family = nfd.resnets(64, 10, block="two-layer")

    def plain() -> None:
        for depth in depths:
            for _ in range(seeds):
                net = nfd.ResNet(64, 10, 128, depth, block="two-layer")
                optimizer = torch.optim.SGD(net.param_groups(0.1))
                for inputs, labels in batches:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()

    took = seconds(lambda: nfd.check(family, batches, [128], depths, lr=0.1, seeds=seeds))
    alone = seconds(plain)
    return [
        {
            "width": 128,
            "depths": f"{depths[0]} to {depths[-1]}",
            "seeds": seeds,
            "steps": steps,
            "batch": batch,
            "check, s": took,
            "training alone, s": alone,
            "training alone / check": Ratio.of(alone / took),
        }
    ]


# ---- sweeps ---------------------------------------------------------------------------------------------------


def sweeps(turn: Round) -> list[Row]:
    """Many short runs: what storing, naming and handing them out adds to training the same in a loop."""
    x, y = digits().batches(16, 20, 0)
    task, family = nfd.Task(list(zip(x, y, strict=True))), nfd.resnets(64, 10)
    depths = range(1, 1 + (4 if turn.quick else 16))
    trials = [nfd.Trial(family, task, 32, depth, seed, 0.3) for depth in depths for seed in range(8)]
    return [_sweep(trials, name) for name in (("inline",) if turn.quick else ("inline", "processes"))]


def _sweep(trials: list[nfd.Trial], executor: str) -> Row:
    with threads(1):
        trials[0].train("cpu")
        alone = seconds(lambda: [trial.train("cpu") for trial in trials])
    with tempfile.TemporaryDirectory() as folder, nfd.Sweep(folder, executor=executor, progress=False) as sweep:
        took = seconds(lambda: sweep.run(trials))
    return {
        "executor": executor,
        "runs": len(trials),
        "sweep, s": took,
        "training alone, s": alone,
        "overhead per run, ms": 1e3 * (took - alone) / len(trials),
        "training alone / sweep": Ratio.of(alone / took),
    }
