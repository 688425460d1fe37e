"""The ``nfd`` command: sizes, seeds, rates and rules on the line; what the nouns hold in a Python file.

What a command needs is imported when it runs: ``nfd --help`` loads no PyTorch, and Ctrl-C is answered from the start.
"""

from __future__ import annotations

import difflib
import importlib
import math
import os
import shlex
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import cloudpickle

from nfd.core.errors import (
    BASE,
    INPUT,
    INTERRUPTED,
    OURS,
    VERDICT,
    InputError,
    StateError,
    UsageError,
    UsageWarning,
    check_choice,
    check_count,
    described,
    is_ours,
    nearest,
    out_of_memory,
    place_of,
    users_frames,
)
from nfd.core.files import prepare_results
from nfd.core.options import option, read_dataclass
from nfd.core.tables import Lead, said, show, visible

if TYPE_CHECKING:
    from nfd.experiments.tuned import Tuned
    from nfd.families.family import Family
    from nfd.laws.transfer import Transfer as Answer
    from nfd.report.page import Report
    from nfd.runs.sweep import Sweep
    from nfd.runs.task import Task

V = TypeVar("V")

# ---- the entry point, and how a command ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 (a verdict), 2 (input), 70 (a bug of ours), 130 (interrupted)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM is Ctrl-C
        code = _run(given)
    except SystemExit as asked:  # of the parser, after --help
        code = asked.code if isinstance(asked.code, int) else 0
    except BrokenPipeError:  # a reader may leave: nfd | head
        code = 0
    except BaseException as error:  # every error ends here, by its type
        code = _ended(error)
    return _flushed(sys.stdout) or code


def _run(given: list[str]) -> int:
    if given[:1] == ["--version"]:
        from nfd import __version__

        print(f"nfd {__version__}")
        return 0
    if not given or given[0] in ("-h", "--help"):
        print(overview())
        return 0
    command = parsed(given)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return int(command.run(shlex.join(["nfd", *given])))
    except SystemExit as error:
        raise StateError(
            f"code that the command ran called sys.exit({error.code!r}){place_of(error)}. Remove the call."
        ) from error


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of nfd as a sentence, and any other as Python does."""
    if issubclass(category, UsageWarning):
        _say(f"nfd: {message}")
    else:
        _say(warnings.formatwarning(message, category, filename, lineno, line).rstrip())


def _ended(error: BaseException) -> int:
    """Say on stderr why a command ended; returns its exit code."""
    if isinstance(error, KeyboardInterrupt):
        _say("nfd: interrupted. The same command continues from what is stored.")
        return INTERRUPTED
    cause = (isinstance(error, UsageError) and error.__cause__) or error
    frames = users_frames(cause)
    if isinstance(error, UsageError):
        _say(f"nfd: {error}")
    elif out_of_memory(error):
        _say(f"nfd: out of memory: {described(error)}")
    elif not is_ours(error):
        _say(f"nfd: your code raised {described(error)}")
    elif isinstance(error, OSError | ImportError):  # what the system says of disks and files, or what is not installed
        _say(f"nfd: {error}")
    else:
        _say("".join(traceback.format_exception(error)))
        _say(f"nfd: this is a bug in nfd, not an error in your input: {described(error)}")
        _say("nfd: please report it to the authors, with the traceback above.")
        return OURS
    _say("".join([*traceback.format_list(frames), *(traceback.format_exception_only(cause) if frames else [])]))
    return INPUT


def _say(text: str) -> None:
    """Print on stderr, in characters that a terminal shows and does not obey; our name is red on a terminal."""
    with suppress(OSError, AttributeError):  # stderr may be full, or closed before we began
        name = "\033[1;31mnfd:\033[0m" if sys.stderr.isatty() and "NO_COLOR" not in os.environ else "nfd:"
        for line in said(text).splitlines():
            shown = visible(line)
            print(f"{name}{shown[4:]}" if shown.startswith("nfd:") else shown, file=sys.stderr)
        sys.stderr.flush()


def _flushed(stream: TextIO | None) -> int:
    """0, or 2 if what was printed could not be written."""
    try:
        if stream is not None:  # it may have been closed before we began
            stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes out when it ends
        if not isinstance(error, BrokenPipeError):
            _say(f"nfd: the output could not be written ({error.strerror}).")
            return INPUT
    return 0


# ---- the Python file that a command reads

_NOUNS = ("family", "make_model", "task", "batches")
_FAMILY = ("blocks", "roles", "version")  # what a file may define beside make_model
_TASK = (  # and beside batches
    "loss", "eval_batches", "schedule", "make_optimizer", "weight_decay", "adamw_lr", "init_scale",
)  # fmt: skip


class Setup:
    """What a Python file defines: ``make_model`` or ``family``, ``batches`` or ``task``, and what belongs to them.

    The file may also define ``loss``, ``eval_batches``, ``schedule``, ``make_optimizer``, ``weight_decay``,
    ``adamw_lr``, ``init_scale``, ``blocks``, ``roles`` and ``version``. Its folder is on the path while it
    runs, so that it can import what lies beside it.

    Raises:
        InputError: naming the file, where it is not there or does not define what is needed.
    """

    def __init__(self, path: str, seed: int = 0) -> None:
        from nfd.core.random import global_streams

        self.path = path
        with global_streams(seed):  # a loader that shuffles gives the same batches every time
            self.names: dict[str, Any] = vars(_imported(path))
        for name in self.names:
            if near := _misspelt(name):
                print(f"nfd: {path} defines {name}, which is not read. Did you mean {near}?", file=sys.stderr)

    def family(self, base: tuple[int, int], rule: str | None = None, optimizer: str | None = None) -> Family:
        """The family that the file defines."""
        from nfd.families.family import Family, as_family

        given = self._either("family", "make_model")
        more = dict[str, Any]()
        if not isinstance(given, Family):
            more = {name: self.names[name] for name in _FAMILY if name in self.names}
            more["name"] = f"{Path(self.path).name}:{getattr(given, '__name__', 'make_model')}"
        return as_family(given, base, rule, optimizer, self.task.sample if self.has_task else None, **more)

    @property
    def has_task(self) -> bool:
        """Whether the file says what to train on."""
        return "task" in self.names or "batches" in self.names

    @property
    def task(self) -> Task:
        """The task that the file defines."""
        from nfd.runs.task import Task

        given = self._either("task", "batches")
        if isinstance(given, Task):
            return given
        more = {name: self.names[name] for name in _TASK if name in self.names}
        if callable(judged := more.get("eval_batches")):  # as batches may be
            more["eval_batches"] = judged()
        return Task(given() if callable(given) else given, **more)

    def _either(self, noun: str, plain: str) -> Any:
        for name in (noun, plain):
            if name in self.names:
                return self.names[name]
        raise InputError(f"{self.path} defines neither {noun} nor {plain}. {_WANTED}")


_WANTED = "Give a Python file with make_model(width, depth) and batches, a list of (inputs, targets)."


def _misspelt(name: str) -> str:
    """The name that was meant, where one is off by a letter or two; a longer or shorter one is another."""
    known = (*_NOUNS, *_FAMILY, *_TASK)
    close = () if name in known else difflib.get_close_matches(name, known, 1, cutoff=0.85)
    return next((near for near in close if not (near.startswith(name) or name.startswith(near))), "")


def _imported(path: str) -> Any:
    """The module that a file is. Its functions and classes travel to other processes as they are."""
    file = Path(path).expanduser()
    if file.suffix != ".py" or not file.is_file():
        near = nearest(file.name, [own.name for own in file.parent.glob("*.py")])
        raise InputError(f"there is no Python file {path!r}.{near} {_WANTED}")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    module = ModuleType(f"nfd_setup_{file.stem}")
    module.__file__ = str(file.resolve())
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    try:  # no bytecode is kept, which an edit within a second would not renew
        exec(compile(file.read_bytes(), module.__file__, "exec"), vars(module))
    except SyntaxError as error:
        raise InputError(f"{error.filename}, line {error.lineno}: {error.msg}.") from error
    return module


# ---- the commands

_ABOUT = """usage: nfd COMMAND [SETUP.py] [options]; nfd COMMAND --help lists them

Example: nfd check setup.py --widths 32 64 128 --depths 2 4 8 --lr 3e-3
setup.py is a Python file that defines make_model(width, depth) and batches.
"""
_CODES = """
Exit codes: 0 done; 1 a check failed, or a law does not hold; 2 an error in
your input or code; 70 a bug in nfd, with its traceback; 130 interrupted by
Ctrl-C or SIGTERM."""


@dataclass
class Command:
    """What the commands that read a Python file share."""

    setup: str = option("", "Python file with make_model and batches, or with family and task", place="SETUP.py")
    rule: str | None = option(None, "scaling rule, such as mup or standard; complete-p by default")
    optimizer: str | None = option(None, "adamw by default; sgd, adam, muon or another registered one")
    seed: int = option(0, "seed of what the file draws while it is read, such as the order of a loader")
    out: str = option("", "directory for the results; by default out/ and the name of the command")

    @property
    def name(self) -> str:
        """The name of the command."""
        return next(name for name, kind in COMMANDS.items() if type(self) is kind)

    @property
    def settings(self) -> dict[str, Any]:
        """The options as plain data, for ``result.json``."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def read_setup(self) -> Setup:
        """The file that was named."""
        if not self.setup:
            raise InputError(f"{self.name} needs a Python file, such as nfd {self.name} setup.py. See nfd --help.")
        return Setup(self.setup, self.seed)

    def directory(self) -> Path:
        """OUT, ready to be written to."""
        return prepare_results(self.out or f"out/{self.name}")


@dataclass
class Trained(Command):
    """What the commands that train share."""

    workers: int | None = option(None, "number of processes; by default one for each core")
    executor: str = option("processes", "where networks are trained: processes, inline (in this one) or ray")
    device: str | None = option(None, "where it computes: cpu, cuda; by default where the batches lie")

    def sweep(self, directory: Path | None) -> Sweep:
        """Where networks are trained and kept."""
        from nfd.runs.sweep import Sweep

        return Sweep(directory, self.workers, self.executor, self.device)

    def stored(self, sweep: Sweep) -> list[str]:
        """Say which runs were stored before; of those of other code the answer has a note."""
        if sweep.reused:
            return [f"{len(sweep.reused)} runs were stored in {sweep.out} and not trained again."]
        if sweep.held and not sweep.holds_other_code:
            other = f"other {' and '.join(sweep.differing)}" if sweep.differing else "other settings"
            return [f"None of the {len(sweep.held)} runs stored in {sweep.out} is of this model and task: {other}."]
        return []


@dataclass
class Sized(Trained):
    """What the commands over several sizes share."""

    widths: tuple[int, ...] = option((32, 64, 128), "widths of the networks; the smallest is that of the base")
    depths: tuple[int, ...] = option((2, 4, 8), "depths of the networks")
    seeds: int = option(3, "initialisations of each network")

    @property
    def base(self) -> tuple[int, int]:
        """The smallest size."""
        if not self.widths or not self.depths:
            raise InputError("--widths and --depths need one number or more each.")
        return check_count("widths", min(self.widths)), check_count("depths", min(self.depths))


@dataclass
class Check(Sized):
    """Train small networks for a few steps over widths and depths, and say what scales wrongly.

    Example: nfd check setup.py --widths 32 64 128 --depths 2 4 8 --lr 3e-3

    Writes report.html, result.json, runs.csv, meters.csv and charts to OUT. Exit code 0 if nothing collapses, grows or
    breaks, 1 if something does.
    """

    lr: float | None = option(None, "learning rate of the base; by default 0.1 for sgd, 0.001 for the others")
    steps: int | None = option(None, "training steps, one per batch; by default the last of --at, or 10")
    at: tuple[int, ...] | None = option(None, "steps to look after, such as 1 10 100; by default the last step")
    noise: bool = option(False, "also estimate the noise scale of the gradients after the last step")

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.meters.check import check

        setup, directory = self.read_setup(), self.directory()
        task = setup.task
        steps = max(check_count("at", step) for step in self.at) if self.at else min(10, task.steps)
        asked = steps if self.steps is None else check_count("steps", self.steps)
        if asked > task.steps:
            raise InputError(f"steps must be at most {task.steps}, one per batch; got {asked}. Give more batches.")
        task = task.first(asked)
        family = setup.family(self.base, self.rule, self.optimizer)
        with self.sweep(None) as sweep:
            result = check(
                family, task, self.widths, self.depths, self.lr, seeds=self.seeds, at=self.at, noise=self.noise,
                sweep=sweep,
            )  # fmt: skip
        page = self._report(family.name, result, command).write(directory)
        show(result.lead, result, f"Report: {page}")
        return 0 if result.ok else VERDICT

    def _report(self, model: str, answer: Any, command: str) -> Report:
        from nfd.meters.check import check_findings
        from nfd.meters.verdict import METERS
        from nfd.report.page import Report, Section, made_by

        meanings = [f"{name.replace('_', ' ')}: {meaning}." for name, meaning in METERS.items()]
        networks = [row for row in answer.rows if not row["matrix"] and row["step"] == answer.steps]
        numbers = {name: getattr(answer, name) for name in ("rule", "optimizer", "lr", "ok", "table", "growth", "rows")}
        suspects = [asdict(suspect) for suspect in answer.suspects]
        return Report(
            f"How {model} scales",
            command,
            self.settings,
            check_findings(answer, f"batches of {self.setup}"),
            answer.lead,
            opening=[Section("What went wrong", [], points=answer.wrong)] if answer.wrong else [],
            closing=[Section("What the meters are", [], points=meanings, folded=True), made_by(command)],
            content={
                "model": model,
                "failures": [str(failure) for failure in answer.failures],
                "suspects": suspects,
                "noise": answer.noise,
                "ladder": answer.ladder,
            }
            | numbers,
            tables={"runs.csv": networks, "meters.csv": answer.rows}
            | ({"noise.csv": answer.noise} if self.noise else {}),
        )


@dataclass
class Logged(Sized):
    """What the commands share that also answer from a table of runs."""

    log: str = option("", "CSV of runs, of any framework, to answer from; nothing is trained", name="from")
    columns: tuple[str, ...] = option((), "with --from, such as lr=config/learning_rate; seed= ignores a column")

    def named_columns(self) -> dict[str, str | None]:
        """The columns by field."""
        return named("--columns", "such as lr=config/learning_rate", self.columns, lambda column: column or None)


@dataclass
class Transfer(Logged):
    """Find the best learning rate at every width and depth under each rule, and what it costs to tune small.

    Example: nfd transfer setup.py --widths 64 256 --rules standard complete-p

    Writes report.html, result.json, transfer.csv and charts to OUT, and every run to OUT/runs.sqlite; the same command
    continues after a stop. With --from it answers from a table of runs: nfd transfer --from runs.csv.
    """

    lr: tuple[float, ...] | None = option(None, "rates to begin with; extended where the best one lies at an end")
    rules: tuple[str, ...] | None = option(None, "rules to compare; by default standard beside that of the family")
    axes: tuple[str, ...] = option(
        (), "settings to vary too, such as batch_size=16,32,64; also steps, weight_decay, init_scale"
    )
    halving: bool = option(False, "choose rates by short trainings first")
    guess: float | None = option(None, "with --from: the loss before training, such as the logarithm of the vocabulary")
    at: tuple[str, ...] = option((), "with --from: the training whose rate is asked, parameters=7B tokens=4T batch=4M")

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.experiments.transfer_findings import hero, result, transfer_findings
        from nfd.laws.rate_law import RateLaw
        from nfd.report.page import Report, made_by

        said, found = list[str](), dict[str, Any]()
        # What was trained, for nfd plan --from; a log does not say it.
        trained = dict[str, Any]()
        if self.log:
            from nfd.laws.rate_runs import fit_rate_law
            from nfd.laws.transfer import rates_of

            directory = self.directory()
            asked = named("--at", "such as parameters=7B tokens=4T batch=4M", self.at, _number)
            answer: Answer | RateLaw = rates_of(self.log, self.named_columns(), self.guess)
            for name in asked:
                check_choice("--at", name, ("parameters", "tokens", "batch"))
            more = [answer.about]
            if asked:
                law = answer if isinstance(answer, RateLaw) else fit_rate_law(self.log, columns=self.named_columns())
                best = law.at(**asked)
                said = [f"At {' '.join(self.at)}: {best}"]
                found["at"] = asked | {"advised": best.advised, "best": best.rate.limits, "excess": best.excess.limits}
        else:
            from nfd.experiments.transfer import transfer

            setup, directory = self.read_setup(), self.directory()
            family = setup.family(self.base, self.rule, self.optimizer)
            axes = named("--axes", "numbers such as batch_size=16,32", self.axes, _numbers)
            with self.sweep(directory) as sweep:
                answer = transfer(
                    family, setup.task, self.widths, self.depths, self.lr, rules=self.rules, seeds=self.seeds,
                    axes=axes or None, halving=self.halving, sweep=sweep,
                )  # fmt: skip
            more = self.stored(sweep)
            trained = {"model": family.name, "optimizer": family.optimizer, "base": family.base}
        lead = replace(answer.lead, verdict=said[0]) if said else answer.lead
        page = Report(
            "At which rate to train?"
            if isinstance(answer, RateLaw)
            else "Is the best learning rate of a small network that of a large one?",
            command,
            self.settings,
            [] if isinstance(answer, RateLaw) else transfer_findings(answer),
            lead,
            [] if isinstance(answer, RateLaw) else hero(answer),
            [*said, *answer.sentences, answer.about],
            answer.levels,
            closing=[made_by(command)],
            content={
                "rules": [] if isinstance(answer, RateLaw) else result(answer.rules),
                "table": answer.table,
                "notes": answer.notes,
            }
            | found
            | trained,
            tables={"transfer.csv": answer.table},
        ).write(directory)
        show(lead, lead, *answer.told(lead), *more, f"Report: {page}")
        return 0


@dataclass
class ScalingLaw(Logged):
    """Fit the loss against width and depth, and say what growing a network buys and what the best size is.

    Example: nfd scaling-law setup.py --widths 32 64 128 --best parameters=1M

    Writes report.html, result.json and charts to OUT, and every run to OUT/runs.sqlite; the same command continues
    after a stop. With --from it answers from a table of runs: nfd scaling-law --from runs.csv.
    """

    seeds: int = option(4, "initialisations of each network")
    lr: float | None = option(None, "learning rate of the base")
    lengths: tuple[int, ...] | None = option(None, "steps that every size is trained for, for a law in tokens too")
    at: tuple[str, ...] = option(
        (), "what is asked about: width=512 depth=16, by default the largest, or parameters=7B tokens=4T"
    )
    best: tuple[str, ...] = option((), "budgets whose best size is asked for, such as parameters=1M flops=1e15")
    rate: str | None = option(None, "with --from: the learning rate whose runs count, or best")

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.experiments.scaling_law import scaling_law
        from nfd.experiments.scaling_law_findings import above_floor, answers_of, answers_of_ladder, ladder_chart
        from nfd.laws.best_size import amount
        from nfd.laws.ladder import LadderLaw
        from nfd.laws.scaling_law import ScalingLaw as Law
        from nfd.laws.scaling_law import losses_of
        from nfd.report.page import Report, made_by

        budgets = named("--best", "such as parameters=1M", self.best, str)
        asked: dict[str, Any] = named("--at", "whole numbers such as width=512, or parameters=7B", self.at, _number)
        for resource, budget in budgets.items():
            amount(resource, budget)  # can be read, before anything is trained
        stored = list[str]()
        if self.log:
            directory = self.directory()
            law: Law | LadderLaw = losses_of(self.log, self.named_columns(), self.rate)
        else:
            setup, directory = self.read_setup(), self.directory()
            family = setup.family(self.base, self.rule, self.optimizer)
            with self.sweep(directory) as sweep:
                law = scaling_law(
                    family, setup.task, self.widths, self.depths, self.lr, seeds=self.seeds, lengths=self.lengths,
                    sweep=sweep,
                )  # fmt: skip
            stored = self.stored(sweep)
        answers: Any
        if isinstance(law, LadderLaw):
            answers = answers_of_ladder(law, asked, budgets)
            chart = ladder_chart(answers)
        else:
            answers = answers_of(law, {name: check_count("--at", number) for name, number in asked.items()}, budgets)
            chart = above_floor(answers)
        lead, more = answers.lead, [*answers.sentences[1:], law.about, *law.notes]
        page = Report(
            "How big should it be?",
            command,
            self.settings,
            [chart],
            lead,
            answers=[lead.verdict, *more],
            closing=[made_by(command)],
            content=answers.result,
        ).write(directory)
        show(lead, lead, *more, *stored, f"Report: {page}")
        return 0 if lead.tone == "good" else VERDICT


@dataclass
class Predict(Trained):
    """Predict the loss of the infinitely wide, and with --depth inf infinitely deep, network.

    Example: nfd predict setup.py --lr 0.3 --depth 4 --width 512

    Writes result.json and predict.csv to OUT, and every network to OUT/runs.sqlite; the same command continues after a
    stop.
    """

    lr: float | None = option(None, "learning rate of the base")
    base: tuple[int, int] = option((64, 4), "width and depth of the base of a plain make_model")
    depth: float = option(math.inf, "number of blocks, or inf")
    width: int | None = option(None, "width of the networks that stand for the infinitely wide one; by default 1,024")
    replicates: int = option(8, "how many of them are averaged")
    weights: Literal["structured", "deferred", "dense"] | None = option(None, "structured, deferred or dense")
    rtol: float | None = option(None, "wanted relative standard error; replicates are doubled until it is met")
    seed: int = option(0, "of the networks, which all predictions with one seed share")

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.core.files import staged, write_csv, write_json
        from nfd.limits.predict import predict

        setup, directory = self.read_setup(), self.directory()
        family = setup.family(self.base, self.rule, self.optimizer)
        depth = int(self.depth) if self.depth.is_integer() else self.depth  # predict refuses others
        with self.sweep(directory) as sweep:
            answer = predict(
                family, setup.task, self.lr, depth=depth, width=self.width, replicates=self.replicates,
                weights=self.weights, rtol=self.rtol, seed=self.seed, sweep=sweep,
            )  # fmt: skip
        with staged(directory) as folder:
            write_csv(folder / "predict.csv", answer.table)
            lead = Lead(str(answer).partition("\n")[0])
            content = {"command": command, "lead": asdict(lead), "config": self.settings, "rows": answer.table}
            write_json(folder / "result.json", content | {"note": answer.note})
        show(lead, answer, *self.stored(sweep), f"Result: {directory / 'result.json'}")
        return 0


@dataclass
class Plan(Command):
    """Plan the network of a size for training by the rates of a smaller one.

    Example: nfd plan setup.py --width 1024 --depth 24 --from out/transfer

    Writes plan.json to OUT; nfd.Plan.load reads it. With --fits it says whether a stored plan fits the network, and
    exits with 1 where it does not. With --self-test it runs the planned model at small sizes, and exits with 1 where
    something does not scale as the rule promises.
    """

    width: int = option(256, "width of the network")
    depth: int = option(4, "depth of the network")
    base: tuple[int, int] | None = option(None, "width and depth that rates were tuned at; by default 64 4")
    tuned: str = option("", "answer of nfd transfer, such as out/transfer, for base, rule and lr", name="from")
    lr: float | None = option(None, "learning rate that was tuned at the base, to show the rate of every tensor")
    batch: tuple[float, float] | None = option(None, "batch of the small run and of this one, in tokens")
    tokens: tuple[float, float] | None = option(None, "length of the small run and of this one, in tokens")
    law: str | None = option(None, "CSV of runs whose best rates say how the rate follows both, not public sweeps")
    fits: str | None = option(None, "plan.json of an earlier plan, to compare with the network")
    self_test: bool = option(
        False, "also run the planned model at small sizes; exit code 1 if something does not scale"
    )

    def run(self, command: str) -> int:
        """Answer; returns the exit code."""
        from nfd.core.files import staged, write_json
        from nfd.experiments.tuned import Tuned
        from nfd.laws.rate_runs import fit_rate_law

        setup = self.read_setup()
        tuned = Tuned.read(self.tuned, self.rule) if self.tuned else None
        family = self._family(setup, tuned)
        module, plan = family.outline(self.width, self.depth)
        if self.fits:
            return self._compare(module)
        directory = self.directory()
        if self.batch or self.tokens or self.law:
            law = fit_rate_law(self.law) if self.law else None
            plan = plan.for_run(self.batch, self.tokens, law=law)
        lr = self.lr
        if lr is None and tuned is not None:
            lr = tuned.lr.value
        table = plan.explain(lr, setup.names.get("adamw_lr"))
        with staged(directory) as folder:
            plan.save(folder / "plan.json")
            lead = Lead(table.partition("\n")[0])
            content = {"command": command, "lead": asdict(lead), "config": self.settings, "lr": lr}
            write_json(folder / "result.json", content | {"plan": plan.to_dict()})
        show(lead, table, *self._remarks(setup, tuned, family), f"Plan: {directory / 'plan.json'}")
        return self._test(family, plan) if self.self_test else 0

    def _test(self, family: Family, plan: Any) -> int:
        """Let the plan test itself; returns the exit code."""
        test = plan.self_test(family.make_model, family.sample)
        show(Lead(test.verdict, "good" if test.ok else "bad"), test)
        return 0 if test.ok else VERDICT

    def _family(self, setup: Setup, tuned: Tuned | None) -> Family:
        """The family of the file, with the base, the rule and the optimizer that were asked for or tuned."""
        base, rule, optimizer = self.base, self.rule, self.optimizer
        if tuned is not None:
            base = base or tuned.base
            rule = rule or tuned.rule
            optimizer = optimizer or tuned.optimizer
            if optimizer != (tuned.optimizer or optimizer):
                raise InputError(
                    f"--from {self.tuned} was tuned with {tuned.optimizer}, whose rates are not those of "
                    f"--optimizer {optimizer}. Leave --optimizer out, or give --base and --lr."
                )
        family = setup.family(base or BASE, rule, optimizer)
        # A family of the file has a base of its own, which yields to the one that was asked for.
        return family if base is None else replace(family, base=base)

    def _remarks(self, setup: Setup, tuned: Tuned | None, family: Family) -> list[str]:
        """Say where the base comes from, unless it was given."""
        if self.base is not None:
            return []
        if tuned is not None:
            return [str(tuned)]
        width, depth = family.base
        if "family" in setup.names:
            return [f"The base is that of the family in {setup.path}: width {width}, depth {depth}."]
        return [
            f"Note: the base is the default, width {width} and depth {depth}. Factors are right only for rates that "
            "were tuned there: give --base WIDTH DEPTH, or --from out/transfer."
        ]

    def _compare(self, module: Any) -> int:
        from nfd.scaling.plan import Plan as Stored
        from nfd.scaling.plan import held_as_planned

        plan = Stored.load(str(self.fits))
        size = f"{self.setup} of width {self.width} and depth {self.depth}"
        try:
            held_as_planned(module, plan.entries)
        except InputError as differing:
            print(f"{self.fits} does not fit {size}. {differing}")
            return VERDICT
        print(f"{self.fits} fits {size}: all {len(plan.entries)} tensors have their names and shapes.")
        return 0


@dataclass
class ReportOf:
    """Make one page from the results in a directory: every result.json there and below, of any command.

    Example: nfd report out

    Writes report.html, which loads nothing from outside, and result.json to OUT. Nothing is trained.
    """

    directory: str = option("", "directory with results, such as out", place="DIR")
    out: str = option("out/report", "directory for the page")

    def run(self, command: str) -> int:
        """Read, draw, write, print; returns the exit code."""
        from nfd.core.files import expanded
        from nfd.paper.pages import claims_sections, warning_sections
        from nfd.report.overview import read_results, replaceable, write_report

        if not self.directory:
            raise InputError("report needs a directory with results, such as out. See nfd report --help.")
        if not replaceable(expanded(self.out)):
            kept = str(Path(self.out) / "result.json")
            raise InputError(f"the page would replace a result, {kept!r}. Choose another directory with --out DIR.")
        results, problems = read_results(expanded(self.directory))
        for problem in problems:
            print(f"nfd: {problem}", file=sys.stderr)
        if not results:
            raise InputError(f"no result in {self.directory!r}: no readable result.json there or below.")
        out, drawers = prepare_results(self.out), [warning_sections, claims_sections]
        path = write_report(results, problems, self.directory, out, command, drawers)
        drawn = sum(len(result.findings) for result in results)
        print(f"{len(results)} result{'s' * (len(results) != 1)}, {drawn} chart{'s' * (drawn != 1)}.")
        print(f"Report: {path}")
        return 0


COMMANDS: dict[str, Any] = {
    "check": Check,
    "transfer": Transfer,
    "scaling-law": ScalingLaw,
    "predict": Predict,
    "plan": Plan,
    "report": ReportOf,
}
RENAMED = {"capacity": "scaling-law", **{name: f"paper {name}" for name in ("study", "figure", "claims")}}
PAPER = {"study": "StudyCommand", "figure": "FigureCommand", "claims": "ClaimsCommand"}


def parsed(given: Sequence[str]) -> Any:
    """The command that a line asks for, with its options."""
    name, *rest = given
    if name == "paper":
        part, *rest = rest or [""]
        if part not in PAPER:
            raise InputError(f"nfd paper has the commands {', '.join(PAPER)}; got {part!r}.{nearest(part, PAPER)}")
        name = f"paper {part}"
    elif name not in COMMANDS:
        near = f" Did you mean {RENAMED[name]!r}?" if name in RENAMED else nearest(name, [*COMMANDS, "paper"])
        raise InputError(f"there is no command {name!r}.{near} See nfd --help.")
    return read_dataclass(_kind(name), f"nfd {name}", rest)


_GROUPS = {"Your model": ("check", "transfer", "scaling-law", "plan", "report"), "The limit": ("predict",)}


def overview() -> str:
    """What ``nfd --help`` prints."""
    lines, width = [_ABOUT], min(84, shutil.get_terminal_size().columns - 2)
    for group, names in [*_GROUPS.items(), ("The paper", tuple(f"paper {name}" for name in PAPER))]:
        lines.append(f"{group}:")
        for name in names:
            summary = (_kind(name).__doc__ or "").partition("\n")[0]
            lines.append(fill(summary, width, initial_indent=f"  {name:13}", subsequent_indent=" " * 15))
    return "\n".join([*lines, _CODES])


def _kind(name: str) -> Any:
    """The dataclass of a command."""
    if name in COMMANDS:
        return COMMANDS[name]
    return getattr(importlib.import_module("nfd.paper.commands"), PAPER[name.removeprefix("paper ")])


def named(argument: str, what: str, texts: Sequence[str], read: Callable[[str], V]) -> dict[str, V]:
    """``name=value`` texts as a dict of what ``read`` makes of the values; InputError where it raises ValueError."""
    found = dict[str, V]()
    for text in texts:
        name, sign, value = text.partition("=")
        try:
            if not sign:
                raise ValueError
            found[name] = read(value)
        except ValueError:
            raise InputError(f"{argument} takes name=value, {what}; got {name}={value!r}.") from None
    return found


def _numbers(values: str) -> tuple[float, ...]:
    return tuple(map(_number, values.split(",")))


def _number(value: str) -> float:
    from nfd.laws.rows import as_number

    return int(value) if value.strip().isdecimal() else as_number(value)
