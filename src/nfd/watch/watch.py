"""``nfd.Watch``: meters on a training that is under way."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from rich.table import Column
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from nfd.core.errors import InputError, InputTypeError, check_count, check_flag, check_seed
from nfd.core.machine import gradients
from nfd.core.random import global_streams
from nfd.core.tables import as_text, table_of
from nfd.families.paper import member_of
from nfd.meters.check import Check
from nfd.meters.health import ModulePath, Relus
from nfd.meters.noise import GradientNoise
from nfd.meters.updates import NO_BLOCKS, Baseline, Look, Pass, Reading, layers_of, meter_of, norm, of_layer, readings
from nfd.scaling.model import (
    TensorInfo,
    as_written,
    attention_by_parts,
    blaming_the_sample,
    block_of,
    check_input,
    check_stored,
    modules,
    tensors,
    whole,
)
from nfd.scaling.plan import Plan, held_as_planned
from nfd.watch.bands import Band, Expected, Kept, LeftOut, Series, WatchRow, at_steps, in_series, steps_of
from nfd.watch.causes import Beginning, Cause, Starts, Stepping, expectation

# ---- ``nfd.Watch``: meters on a training that is under way


class Watch:
    """Meters of a model during training, per layer and for the network, in any training loop.

    Call ``step()`` after every step of the optimizer, before ``zero_grad()``. Every ``every`` steps it takes a look: it
    runs the sample through the model and adds rows. Training is not affected, to the last bit: parameters, gradients,
    buffers, modes and random streams stay as they were. Printing a watch shows the latest look beside the first one.

    Notation: ``W`` the effective weights, ``z`` the input of a matrix, ``h`` the stream behind a block, ``f`` the
    outputs, all on the sample; (0) marks the start. The meters are:

    - of the network (``layer`` None): those of ``nfd.meters.updates``, which ``nfd.check`` has too:
      ``first_activation``, ``activation``, ``activation_update``, ``inner_update``, ``stream_update``,
      ``function_update``, ``function_update_inner``, ``update_to_weight``, ``alignment``;
    - of every block: ``activation``, rms(h), ``activation_update``, rms(h - h(0)), and ``added``, the RMS of the
      block's contribution to the stream times the number of blocks;
    - of every matrix: ``change``, ``|W - W(0)| / |W(0)|``, and ``weight``, ``|W| / |W(0)|``;
    - of every matrix that adds up coordinates of the stream: ``update``, rms((W - W(0)) z), and ``alignment`` of the
      last step's update with z (``nfd.meters.updates``); of inner ones ``update_to_weight``,
      ``|W - W(0)|_2 / |W(0)|_2``;
    - of every block and of the network ``gradient_ratio`` (``nfd.watch.watch``), from the gradients that are there;
    - of ReLUs ``dead_units``, of attention ``attention_entropy`` and ``attention_logits`` (``nfd.watch.watch``).

    Args:
        model: before its first step; it may be compiled, wrapped by DDP or sharded by FSDP2. Under FSDP2 every process
            must call ``step()``; under DDP one suffices.
        plan: of this model.
        sample: an input of the model: a tensor, a tuple of arguments or a dict of keyword arguments.
        every: steps between looks. The default takes less than 3 % of the time, also for small models
            (``benchmarks.watch``).
        expected: a check of small networks, or the path where it was stored. It gives every meter a band at this size
            (``nfd.watch.bands``); a meter that leaves its band raises an alert. Your own object with
            ``alerts(rows)`` works too.
        seed: that of ``plan.apply_``. Initial weights that can be drawn again from it are not stored.
        own_start: whether the model is meant to start from other weights than the plan's, such as trained ones.
            Initial weights are then not compared with the plan (``nfd.watch.causes``).
        samples: samples per step. If given, the gradients of the eight steps before every look are added to ``noise``.
            They must be unclipped, and not yet set to zero.

    Attributes:
        rows: every number so far (``nfd.watch.WatchRow``).
        alerts: initial weights that are not the plan's, at step 0, and deviations from ``expected``
            (``nfd.watch.Alert``). The first step warns of the former.
        failed: what went wrong when a look, or a listener, last raised an error, in words; None if none did. The first
            error warns; no error ends the training, and the next look is tried as usual.
        listeners: called with the watch after every look, such as ``functools.partial(nfd.run_page, path="run.html")``.
        steps: how often ``step()`` was called, once for every step of the optimizer. Bands are wrong if you call it
            more rarely; ``every`` sets how often it looks.
        noise: the noise of gradients (``nfd.meters.noise.GradientNoise``); None without ``samples``.
            ``noise.estimate()`` gives the noise scale, and rows have it as ``noise_scale`` as soon as it is known. If
            you accumulate gradients, call ``noise.add`` for every micro-batch instead.

    Raises:
        ValueError, TypeError: naming the argument; also where the model is not the one planned.

    Example::

        plan.apply_(model, seed=0)
        watch = nfd.Watch(model, plan, sample=x, every=2)
        for inputs, targets in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            watch.step()
        print(watch)
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        sample: Any,
        every: int = 128,
        expected: Check | Expected | str | Path | None = None,
        *,
        seed: int = 0,
        samples: int | None = None,
        own_start: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputTypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
        if not isinstance(plan, Plan):
            raise InputTypeError(f"plan must be an nfd.Plan, as nfd.plan makes it; got {type(plan).__name__}.")
        _check_unflattened(model)
        check_stored(model)
        held_as_planned(model, plan.entries)
        check_input(sample)
        self.every = check_count("every", every)
        self.rows: list[WatchRow] = []
        self.listeners: list[Callable[[Watch], object]] = []
        self.steps = 0
        self.noise = None if samples is None else GradientNoise(samples)
        self.failed: str | None = None
        self._told = self._lacks_gradients = False
        self._judged_last = 0
        self._reader = Reader(model, plan, sample, check_seed(seed))
        begun = Beginning.seen(plan, self._reader.starts)
        self.expected = None if expected is None else expectation(expected, plan, self._reader.layers)
        self._stepping = Stepping(plan, self._reader.member.module)
        self._begin(begun.restored([]) if check_flag("own_start", own_start) else begun)
        self._prepare()

    def step(self) -> Sequence[WatchRow]:
        """Count a step of the optimizer, and read the meters if a look is due.

        Call it after ``optimizer.step()`` and before ``optimizer.zero_grad()``.

        Returns:
            The new rows; empty between looks, and where a look failed.
        """
        alerts: list[Any] = [] if self.steps else [*self._beginning.alerts]
        self.steps += 1
        known, due = len(self.rows), self.steps % self.every == 0
        with self._going_on():
            stepped = self._stepping.judged(self.steps)
            self.alerts += stepped
            alerts += stepped
            self._add_gradients()
        if due:
            with self._going_on():
                self._add([*self._reader.rows(self.steps), *self._noise_rows()])
            for listener in self.listeners:
                with self._going_on():
                    listener(self)
        with self._going_on():
            self._prepare()
        if self.failed is not None and not self._told:
            self._told = True
            warnings.warn(f"{self.failed} The training goes on.", RuntimeWarning, stacklevel=2)
        for alert in alerts:
            if alert.cause is not Cause.RATE:  # of which the optimizer itself warns
                warnings.warn(str(alert), RuntimeWarning, stacklevel=2)
        return self.rows[known:]

    def state_dict(self, *, start: bool = True) -> dict[str, Any]:
        """The state for a checkpoint: steps, rows, and tensors of the start.

        Args:
            start: False leaves out the tensors, so that JSON can hold the state. Then the watch that loads it must be
                made from the untrained model.
        """
        known = {"start": self._reader.state()} if start else {}
        noise = {} if self.noise is None else {"noise": self.noise.state()}
        state = {"steps": self.steps, "rows": self.table, "other_starts": self._beginning.state()}
        rates = {"other_rates": self._stepping.state()}
        return state | rates | noise | known

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue an earlier watch of the same model and sample, as if there had been no stop.

        Load the weights of the model first. Alerts are found again from the rows.

        Args:
            state: the result of ``state_dict``.

        Raises:
            ValueError: if it is not such a state, or is that of another model.
        """
        try:
            rows = [WatchRow(**row) for row in state["rows"]]
            steps = check_count("state['steps']", state["steps"], minimum=0)
            beginning = self._beginning.restored(state.get("other_starts", ()))
            self._stepping.load(state.get("other_rates", ()))
            if "start" in state:
                self._reader.load(state["start"])
            if self.noise is not None and "noise" in state:
                self.noise.load(state["noise"])
        except (KeyError, TypeError) as error:
            raise InputError(
                f"state must be what state_dict() of a watch of this model returned; got {type(state).__name__} "
                f"({type(error).__name__}: {error})."
            ) from error
        self.steps, self.rows, self._judged_last = steps, [], 0
        self._begin(beginning)
        for _, look in groupby(rows, key=lambda row: row.step):
            self._add(list(look))
        self._prepare()

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per row, with ``step``, ``meter``, ``layer``, ``depth`` and ``value``."""
        return [asdict(row) for row in self.rows]

    @property
    def line(self) -> str:
        """The latest look as one line for a log: the meters of the whole network and the number of alerts."""
        return line_of_watch(self)

    def __str__(self) -> str:
        return table_of_watch(self)

    def band(self, row: WatchRow) -> Band | None:
        """The expected value of a row and its interval; None without ``expected`` or if that lacks the meter."""
        band = getattr(self.expected, "band", None)
        return None if band is None else band(row)

    @property
    def unjudged_since(self) -> int | None:
        """The last step at which a look was compared with ``expected``, where a later look was not: the check ended, or
        a look failed. 0 if none was compared yet, None if the latest one was or there is no ``expected``."""
        latest = self.steps - self.steps % self.every
        is_judged = self.expected is None or (0 < self._judged_last == latest)
        return None if is_judged else self._judged_last

    @property
    def expects_faults(self) -> bool:
        """Whether the check in ``expected`` found faults, which then are what the bands expect."""
        return not getattr(self.expected, "is_of_sound", True)

    @property
    def left_out(self) -> list[LeftOut]:
        """Meters that this model does not have or that cannot be read from it, with the reasons."""
        lacking = [LeftOut("noise", NO_GRADIENTS)] if self._lacks_gradients else []
        return self._reader.left_out + lacking

    @property
    def keeps(self) -> list[Kept]:
        """The memory that the watch uses: what it stores, on which device, and how many bytes."""
        return self._reader.keeps

    def _add_gradients(self) -> None:
        """Take in the gradients of a step, if it is one of the last before a look."""
        if self.noise is None or (left := -self.steps % self.every) >= self.noise.group:
            return
        if left == self.noise.group - 1:
            self.noise.restart()
        gradients = [p.grad for p in self._reader.member.module.parameters() if p.requires_grad]
        self._lacks_gradients = all(g is None for g in gradients)
        if not self._lacks_gradients:
            self.noise.add(gradients)

    def _noise_rows(self) -> list[WatchRow]:
        """The noise scale by all steps so far, where it is known."""
        scale = math.nan if self.noise is None else self.noise.estimate().value
        return [WatchRow(self.steps, "noise_scale", None, None, scale)] if math.isfinite(scale) else []

    def _begin(self, beginning: Beginning) -> None:
        """Alert to initial weights and rates that are not those of the plan, and to nothing else yet."""
        self._beginning = beginning
        self.alerts: list[Any] = [*beginning.alerts, *self._stepping.alerts]

    def _prepare(self) -> None:
        self._reader.before_step(looked_at=(self.steps + 1) % self.every == 0)

    def _add(self, rows: list[WatchRow]) -> None:
        self.rows += rows
        if self.expected is not None:
            causes = self._beginning, self._stepping
            self.alerts += [a for a in self.expected.alerts(rows) if not any(cause.explains(a) for cause in causes)]
            if any(map(self._is_judged, rows)):
                self._judged_last = rows[0].step

    def _is_judged(self, row: WatchRow) -> bool:
        """Whether ``expected`` knows what a row should be; one without bands is taken to know it of all rows."""
        last = getattr(self.expected, "last_step", None)
        has_bands = getattr(self.expected, "band", None) is not None
        return (last is None or row.step <= last) and (not has_bands or self.band(row) is not None)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Within it an error is noted, whatever it is: no training ends for what watches it."""
        try:
            yield
        except Exception as error:
            message = (str(error).splitlines() or [""])[0][:300]
            self.failed = f"The watch failed after step {self.steps} ({type(error).__name__}: {message})."


def _check_unflattened(model: nn.Module) -> None:
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise InputError(
            "model must not be flattened: FullyShardedDataParallel (FSDP1) hides which numbers are which matrix. Shard "
            "it by torch.distributed.fsdp.fully_shard (FSDP2), or wrap it by DistributedDataParallel."
        )


# ---- A watch as text: a table of the latest look beside the first one, and one line for a log.


_COLUMNS = ("meter", "of", "first look", "latest look", "since the first", "expected")
_FAULTS = (
    "The check that this watch expects found faults (check.ok is False): a training with the same faults raises no "
    "alert. Print the check."
)
_LAYERS = "Of several layers: the median, and [the least, the largest]."


def table_of_watch(watch: Watch) -> str:
    """A row for every meter of the network and of every kind of layers, under what the watch says against the run."""
    left_out = [f"{part.meter} is left out: {part.reason}" for part in watch.left_out]
    alerts = [f"! {alert}" for alert in watch.alerts]
    remarks = remarks_of(watch)
    if not watch.rows:
        none = f"No look yet: the first one follows step {watch.every}." if watch.steps < watch.every else "No look."
        return "\n".join([none, *alerts, *remarks, *left_out])
    steps = steps_of(watch.rows)
    looks = f"{len(steps)} look{'s' if len(steps) > 1 else ''}, one every {watch.every} steps"
    table = table_of(*(Column(name, no_wrap=name != "expected") for name in _COLUMNS))
    for series, rows in in_series(at_steps(watch.rows, sorted({steps[0], steps[-1]}))).items():
        first, latest = ([row for row in rows if row.step == step] for step in (steps[0], steps[-1]))
        if latest:
            ends = spread(first), spread(latest), _change(first, latest)
            table.add_row(series.meter, name_of(series, latest), *ends, _expected(watch, latest))
    notes = [_LAYERS] if any(row.layer for row in watch.rows) else []
    head = f"Step {steps[-1]}: {looks}"
    return "\n".join([head, *alerts, *remarks, as_text(table, 150), *notes, *left_out])


def remarks_of(watch: Watch) -> list[str]:
    """Why the watch tells less than it seems to: it failed, the check in ``expected`` ended before the latest look, or
    that check found faults."""
    last: int | None = getattr(watch.expected, "last_step", None)
    ended = last is not None and watch.unjudged_since is not None and watch.steps > last
    remarks = [] if watch.failed is None else [watch.failed]
    remarks += [f"Nothing is judged after step {last}: the check ends there. Check for more steps."] if ended else []
    return remarks + ([_FAULTS] if watch.expects_faults else [])


def not_judged(watch: Watch) -> str | None:
    """``not judged since step 6``, where the latest look was not compared with ``expected``; None where it was, or
    nothing is expected."""
    since = watch.unjudged_since
    return None if since is None else f"not judged since step {since}" if since else "not judged yet"


def line_of_watch(watch: Watch) -> str:
    """The meters of the whole network at the latest look, those outside of their bands marked, and the alerts."""
    if not watch.rows:
        return f"step {watch.steps}: {watch.failed or 'no look yet'}"
    step = watch.rows[-1].step
    network = [row for row in at_steps(watch.rows, [step]) if row.layer is None]
    meters = [f"{row.meter} {row.value:.3g}{'!' if outside(watch, row) else ''}" for row in network]
    alerts = [f"alerts {len(watch.alerts)}"] if watch.expected is not None or watch.alerts else []
    unjudged = [text] if (text := not_judged(watch)) else []
    return ", ".join([f"step {step}: {meters[0]}", *meters[1:], *alerts, *unjudged])


def name_of(series: Series, rows: Sequence[WatchRow]) -> str:
    """Of what a series speaks: the network, one layer, or a kind of layers and how many of them there are."""
    if series.kind is None:
        return "the network"
    layers = len({row.layer for row in rows})
    blocks = f"{layers} block{'s' if layers > 1 else ''}"
    return series.kind if not series.along else f"{series.kind} of {blocks}" if series.kind else blocks


def spread(rows: Sequence[WatchRow]) -> str:
    """The value of one row; of several the median, the least and the largest."""
    values = [row.value for row in rows]
    if len(values) < 2:
        return "".join(f"{value:.3g}" for value in values)
    if not all(map(math.isfinite, values)):
        return "not finite"
    return f"{median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"


def outside(watch: Watch, row: WatchRow) -> bool:
    """Whether a row lies outside of its band; False where it has none."""
    band = watch.band(row)
    return band is not None and not band.low <= row.value <= band.high


def _change(first: Sequence[WatchRow], latest: Sequence[WatchRow]) -> str:
    """By which factor values changed; of several layers the median one."""
    starts = {row.layer: row.value for row in first}
    factors = [row.value / starts[row.layer] for row in latest if starts.get(row.layer)]
    return f"x {median(factors):.3g}" if factors and all(map(math.isfinite, factors)) else ""


def _expected(watch: Watch, rows: Sequence[WatchRow]) -> str:
    """The band of one row; of several how many lie outside of theirs."""
    bands = [band for row in rows if (band := watch.band(row)) is not None]
    if not bands:
        return ""
    beyond = sum(outside(watch, row) for row in rows)
    if len(rows) > 1:
        return f"{beyond} of {len(bands)} outside" if beyond else "all within"
    return f"{bands[0].value:.3g} [{bands[0].low:.3g}, {bands[0].high:.3g}]{' outside' if beyond else ''}"


# ---- One look at a model: its meters as rows, what is kept of its start, and what it does not show


DEAD, ENTROPY, LOGITS = "dead_units", "attention_entropy", "attention_logits"
_NO_ATTENTION = "no softmax of attention is seen in a pass over the sample: there is none, or a fused kernel has it."
_ABSENT = {
    DEAD: "no ReLU is seen in a pass over the sample, or the sample has fewer than 16 rows.",
    ENTROPY: _NO_ATTENTION,
    LOGITS: _NO_ATTENTION,
}
NO_GRADIENTS = "no parameter had a gradient at the last look: call step() before zero_grad()."


class Reader:
    """Reads a model at every look.

    Args:
        model: before training; a wrapper's model is called itself.
        plan, sample, seed: as in ``nfd.Watch``.
    """

    def __init__(self, model: nn.Module, plan: Plan, sample: Any, seed: int) -> None:
        self.member = member_of(modules(model)[""], plan)
        module = self.member.module
        with apart(module):
            with blaming_the_sample(sample):
                self.baseline = Baseline(self.member, sample, partial(Starts, plan, seed))
            with activity(module) as active:
                self.baseline.seen()
        self._unread = {
            meter_of(m, stack): why for stack, unread in self.baseline.unread.items() for m, why in unread.items()
        } | {m: why for m, why in _ABSENT.items() if m not in active.network}
        if not self.member.blocks:
            self._unread[RATIO] = NO_BLOCKS
        self._previous: dict[str, Tensor] | None = None

    @property
    def starts(self) -> Starts:
        """The matrices before training."""
        return cast(Starts, self.baseline.start)

    @property
    def layers(self) -> dict[str, str]:
        """The layer of every matrix, by their names."""
        return layers_of(self.baseline.matrices)

    def before_step(self, *, looked_at: bool) -> None:
        """Copy the matrices that a step will change, where a look will ask for the alignment of its update."""
        self._previous = None  # before new ones are made
        if looked_at:
            self._previous = self.baseline.weights()

    def rows(self, step: int) -> list[WatchRow]:
        """Look at the model after so many steps."""
        module = self.member.module
        previous, self._previous = self._previous, None  # of this step alone, also where the look fails
        with apart(module):
            infos, stacks = tensors(module), self.member.stacks
            ratios = {stack: gradient_ratios(infos, blocks) for stack, blocks in stacks.items()}
            with activity(module) as active:
                seen = self.baseline.seen()
            look = self.baseline.look(previous, seen)
        for stack, own in ratios.items():
            if own:
                self._unread.pop(meter_of(RATIO, stack), None)
            else:
                self._unread.setdefault(meter_of(RATIO, stack), NO_GRADIENTS)
        return [WatchRow(step, *reading) for reading in self._all(look, active, ratios)]

    def _all(self, look: Look, active: Activity, ratios: Mapping[str, Mapping[str, float]]) -> Iterator[Reading]:
        yield from readings(self.member, look)
        first = {meter_of(RATIO, stack): next(iter(own.values())) for stack, own in ratios.items() if own}
        for meter, value in (active.network | first).items():
            yield Reading(meter, None, None, value)
        for block, ratio in (item for own in ratios.values() for item in own.items()):
            yield from of_layer(self.member, block, block, {RATIO: ratio})
        for layer, meters in active.layers.items():
            yield from of_layer(self.member, layer, layer, meters)

    @property
    def left_out(self) -> list[LeftOut]:
        """The meters that cannot be read from this model, and why."""
        return [LeftOut(meter, reason) for meter, reason in self._unread.items()]

    @property
    def keeps(self) -> list[Kept]:
        """What is stored, where, and how many bytes."""
        before = self.baseline.before
        seen = [before.outputs, before.features, *before.behind.values()]
        distinct = {h.data_ptr(): h for h in seen}.values()
        kept = [Kept("outputs and stream of the sample", str(before.outputs.device), sum(h.nbytes for h in distinct))]
        if self.starts.kept:
            kept.append(Kept("initial matrices", "cpu", sum(start.nbytes for start in self.starts.kept.values())))
        if self._previous:
            place = str(next(iter(self._previous.values())).device)
            kept.append(Kept("matrices before the next step", place, sum(w.nbytes for w in self._previous.values())))
        return kept

    def state(self) -> dict[str, Any]:
        """What is known of the start, for a checkpoint."""
        before = {part.name: getattr(self.baseline.before, part.name) for part in fields(Pass)}
        return {"before": before, "seed": self.starts.seed, "kept": self.starts.kept}

    def load(self, state: Mapping[str, Any]) -> None:
        """Know this start again."""
        known = {part.name for part in fields(Pass)}  # earlier versions stored more
        self.baseline.begin_at(Pass(**{name: part for name, part in state["before"].items() if name in known}))
        self.starts.seed, self.starts.kept = state["seed"], dict(state["kept"])


# ---- What units and attention do over a pass: dead units, entropies and logits


_SOFTMAXES = {torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default}


@dataclass
class Activity:
    """The meters of a pass: a value for every time that a module's ReLU or attention ran."""

    seen: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def add(self, meter: str, layer: str, value: float) -> None:
        """Note a value of a layer."""
        self.seen[meter][layer].append(value)

    @property
    def network(self) -> dict[str, float]:
        """The mean of each meter over all layers."""
        return {meter: _mean([_mean(own) for own in layers.values()]) for meter, layers in self.seen.items()}

    @property
    def layers(self) -> dict[str, dict[str, float]]:
        """The meters of each layer."""
        layers: dict[str, dict[str, float]] = {}
        for meter, of in self.seen.items():
            for layer, values in of.items():
                layers.setdefault(layer, {})[meter] = _mean(values)
        return layers


@contextmanager
def activity(model: nn.Module) -> Iterator[Activity]:
    """Within it a pass of the model shows what its units and its attention do."""
    path, seen = ModulePath(), Activity()
    relus = Relus(path)
    with path.followed(model), relus, _Softmaxes(path, seen):
        yield seen
    for layer, share in relus.seen:
        seen.add(DEAD, layer, share)


class _Watching:
    """What ``_Softmaxes`` does at every operation. In the class of the mode itself PyTorch would wrap this method for
    its compiler, which takes as long as a small operation."""

    path: ModulePath
    seen: Activity

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _SOFTMAXES and self._attends(args[0], args[1]):
            logits, shares = args[0].double(), out.double()
            visible = shares != 0
            squares = torch.where(visible, logits, 0.0).square().sum() / visible.sum()
            self.seen.add(ENTROPY, self.path.name, float(torch.special.entr(shares).sum(-1).mean()))
            self.seen.add(LOGITS, self.path.name, float(squares.sqrt()))
        return out

    def _attends(self, logits: Tensor, dim: int) -> bool:
        several = logits.dim() > 3 or isinstance(self.path.module, nn.MultiheadAttention)
        return several and dim % logits.dim() == logits.dim() - 1


class _Softmaxes(_Watching, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches every softmax that is attention's."""

    def __init__(self, path: ModulePath, seen: Activity) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path, self.seen = path, seen


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


# ---- Gradients between layers, as the backward pass of a training left them


RATIO = "gradient_ratio"


def gradient_ratios(infos: Mapping[str, TensorInfo], blocks: Sequence[str]) -> dict[str, float]:
    """The ratio of every block of a stack; none where the last one has no gradient, or zero."""
    squares: dict[str, float] = {}
    for name, t in infos.items():
        block = block_of(name, blocks)
        if block is not None and t.parameter.grad is not None:
            squares[block] = squares.get(block, 0.0) + norm(whole(t.parameter.grad)) ** 2
    last = math.sqrt(squares.get(blocks[-1], 0.0)) if blocks else 0.0
    return {block: math.sqrt(squares.get(block, 0.0)) / last for block in blocks} if last != 0 else {}


# ---- Passes over a sample that leave the training around them as it was


@contextmanager
def apart(model: nn.Module) -> Iterator[None]:
    """Within it a model runs outside of a trainer's autocast, as it was written where it is compiled, attention by its
    parts, from random streams of its own; afterwards its buffers and the global streams are what they were."""
    places = {p.device for p in model.parameters() if p.device.type != "cpu"}
    with ExitStack() as stack:
        stack.enter_context(gradients())
        stack.enter_context(global_streams(0, sorted(places, key=str)))
        stack.enter_context(as_written())
        stack.enter_context(attention_by_parts())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_same_buffers(model))
        stack.enter_context(_own_forward(model))
        yield


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """Buffers that a pass writes or replaces are put back."""
    before = [
        (module._buffers, name, buffer, buffer.clone(), buffer._version)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for held, name, buffer, values, version in before:
            if buffer._version != version:
                buffer.copy_(values)
            held[name] = buffer


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """The model's own ``forward``, where Accelerate put one of 16 bits over it and left it beside. The start of a
    training was read before that, and differences of numbers of 16 bits are noise where the updates are small."""
    wrapped = model.__dict__.get("forward")
    if wrapped is None or "_original_forward" not in model.__dict__:
        yield
        return
    model.forward = model.__dict__["_original_forward"]
    try:
        yield
    finally:
        model.forward = wrapped
