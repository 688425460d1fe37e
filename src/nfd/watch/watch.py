"""``nfd.Watch``: meters on a training that is under way."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Column
from torch import nn

from nfd.core.errors import InputError, InputTypeError, check_count, check_flag, check_seed
from nfd.core.tables import as_text, table_of
from nfd.meters.noise import GradientNoise
from nfd.meters.outcome import Check
from nfd.scaling.held import held_as_planned
from nfd.scaling.model import check_input, check_stored
from nfd.scaling.plan import Plan
from nfd.watch.alerts import Cause
from nfd.watch.bands import Band
from nfd.watch.beginning import Beginning
from nfd.watch.expected import expectation
from nfd.watch.ladder import Series
from nfd.watch.reader import NO_GRADIENTS, Reader
from nfd.watch.rows import Expected, Kept, LeftOut, WatchRow
from nfd.watch.series import at_steps, in_series, steps_of
from nfd.watch.stepping import Stepping


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
      last step's update with z (``nfd.meters.matrices``); of inner ones ``update_to_weight``,
      ``|W - W(0)|_2 / |W(0)|_2``;
    - of every block and of the network ``gradient_ratio`` (``nfd.watch.gradients``), from the gradients that are there;
    - of ReLUs ``dead_units``, of attention ``attention_entropy`` and ``attention_logits`` (``nfd.watch.activity``).

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
            Initial weights are then not compared with the plan (``nfd.watch.beginning``).
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
