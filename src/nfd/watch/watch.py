"""``nfd.Watch``: meters on a training run that is under way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat, cast

import torch
from torch import Tensor, nn

from nfd.core.answer import Answer
from nfd.core.checks import check_count, check_flag, check_seed
from nfd.core.errors import InputError, InputTypeError, in_brief
from nfd.core.modes import gradients
from nfd.core.random import global_streams
from nfd.core.words import plural
from nfd.families.member import Member
from nfd.laws.curve import RunForecast, Schedule, forecast_run
from nfd.meters.check import Check
from nfd.meters.reading import Series, WatchRow, at_steps
from nfd.meters.updates import (
    DEFINITION,
    Baseline,
    Pass,
    layers_of,
    means_the_same,
    meter_of,
    readings,
)
from nfd.report.shown import Shown
from nfd.runs.task import content_hash
from nfd.scaling.held import held_as_planned
from nfd.scaling.initialise import drawn
from nfd.scaling.model import TensorInfo, check_plannable, in_any_block, modules, whole
from nfd.scaling.plan import Plan
from nfd.scaling.planning import plan as plan_of
from nfd.scaling.rules import rule_named
from nfd.scaling.samples import (
    as_written,
    blaming_the_sample,
    check_sample,
    mapped,
    tensors_in,
)
from nfd.watch.alerts import Alert, Cause, faults_of
from nfd.watch.bands import ALERTS, DRIFTING, Band
from nfd.watch.causes import (
    Alarm,
    RateCheck,
    Verified,
    expectation,
    init_check,
    ladder_of,
    loss_alert,
)
from nfd.watch.notices import AlertError, OnAlert, check_on_alert, notify
from nfd.watch.schedules import Difference, Rate, ScheduleCheck
from nfd.watch.signs import LossSigns, Signs

if TYPE_CHECKING:
    from nfd.report.page import Section


# Numbers that show whether a model is the untrained one, and how far they may differ
_FEW_OUTPUTS = 8
_SAME_OUTPUTS = 0.01
# A gradient scaler skips a few steps.
_SKIPPED = 20


class Watch(Shown):
    """Meters of a model during training, per layer and for the network, in any training loop.

    Call ``step()`` after every step of the optimizer. Every ``every`` steps it takes a look: it
    runs the sample through the model and adds rows. Training is not affected, to the last bit:
    parameters, gradients, buffers, modes and random streams stay as they were.

    Printing a watch says whether the training is on course, in at most 15 lines; a notebook shows
    the same with its charts, as does ``nfd.run_page``. ``to_pandas()`` has the columns of
    ``table``.

    There are meters of the network (``nfd.meters.updates``), of every block and of every matrix,
    such as ``change``, ``|W - W(0)| / |W(0)|``. docs/api/watch.md defines each.

    Args:
        model: before its first step; it may be compiled, wrapped by DDP or sharded by FSDP2.
        plan: the plan of this model; None for a model without a plan.
        sample: an input: a tensor, a tuple of arguments or a dict of keyword arguments.
        every: steps between looks.
        expected: a check of small networks, or the path where it was stored: bands of every meter
            at this size (``nfd.watch.bands``). A meter outside of its band raises an alert.
        seed: the seed of ``plan.apply_``.
        own_start: whether the model is meant to start from other weights than the plan's.
        on_alert: what follows an alert. Each is logged; its cause is warned of once, not for
            every layer. ``"stop"`` also sets ``should_stop``, ``"raise"`` raises an error in
            ``step()``.

    Attributes:
        rows: every number so far (``nfd.watch.WatchRow``).
        left_out: why meters cannot be read from this model, by name.
        alerts: initial weights that are not the plan's, at step 0, and deviations from ``expected``
            and from the forecast of the loss (``nfd.watch.Alert``).
        should_stop: whether an alert was raised with ``on_alert="stop"``.
        losses: by step, as ``step`` was given them.
        failed: the last error of a look or a listener, in words; None without any.
        miscounted: that the optimizer stepped more or less often than ``step()`` was called, in
            words; None where it did not.
        listeners: called with the watch after every look.
        steps: how often ``step()`` was called.

    Raises:
        ValueError, TypeError: naming the argument; also where the model is not the one planned.
        nfd.watch.AlertError: by ``step()``, at an alert with ``on_alert="raise"``.

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
        plan: Plan | None,
        sample: Any,
        every: int = 128,
        expected: Check | str | Path | Alarm | None = None,
        *,
        seed: int = 0,
        own_start: bool = False,
        on_alert: OnAlert = "warn",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputTypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
        if not isinstance(plan, Plan | None):
            kinds = "an nfd.Plan, as nfd.plan makes it, or None for a model without one"
            raise InputTypeError(f"plan must be {kinds}; got {type(plan).__name__}.")
        check_plannable(model)
        self.is_planned = is_planned = plan is not None
        if plan is None:
            plan = unscaled(model, sample, expected)
        held_as_planned(model, plan.entries)
        check_sample("sample", sample)
        # Loaders may refill the tensors that they gave.
        sample = mapped(sample, _own)
        self._sample_hash = content_hash(tensors_in(sample))
        self.every = check_count("every", every)
        self.rows: list[WatchRow] = []
        self.listeners: list[Callable[[Watch], object]] = []
        self.steps = 0
        self.losses: dict[int, float] = {}
        # Losses that may be on an accelerator, which is not waited for
        self._unread: dict[int, Tensor | float] = {}
        # Whether some losses are means over several steps
        self.has_mean_losses = False
        self._forecast: RunForecast | None = None
        self.failed: str | None = None
        self.on_alert = check_on_alert(on_alert)
        self.should_stop = False
        self._notified = set[_Key]()
        # The latest error of a look, and all errors that were warned of
        self._error: str | None = None
        self._failures = set[str]()
        self._judged_last = 0
        self._verified = Verified()
        # Matrices before the step that a look follows
        self._previous: dict[str, Tensor] | None = None
        self._plan = plan
        self._member = Member(modules(model)[""], plan)
        with apart(self._member.module), blaming_the_sample(sample):
            # Without a plan no seed gives initial weights again, and they are kept.
            drawn_from = check_seed(seed) if is_planned else None
            self._baseline = Baseline(self._member, sample, partial(Starts, plan, drawn_from))
        self.left_out = dict[str, str]()
        for stack, reasons in self._baseline.unread.items():
            self.left_out |= {meter_of(meter, stack): why for meter, why in reasons.items()}
        self._starts = cast(Starts, self._baseline.start)
        with apart(self._member.module):
            self._signs = Signs(self._member, self._baseline)
        self._loss_signs = LossSigns()
        # Where the optimizer made another number of steps than were counted, in words
        self.miscounted: str | None = None
        self._has_told_counts = False
        self._own_start = check_flag("own_start", own_start)
        self.expected: Alarm | None = None
        if expected is not None:
            self.expected = expectation(expected, plan, layers_of(self._baseline.matrices))
        self._rates = RateCheck(plan, self._member.module, is_planned=is_planned)
        ladder = None if self.expected is None else self.expected.ladder
        self._schedule: ScheduleCheck | None = None
        # Earlier versions stored checks without their schedule.
        if ladder is not None and ladder.schedule:
            self._schedule = ScheduleCheck(ladder.schedule, ladder.lr)
        self._begin()

    def step(self, loss: Tensor | float | None = None) -> Sequence[WatchRow]:
        """Count a step of the optimizer, and read the meters if a look is due.

        Call it after ``optimizer.step()`` and before ``optimizer.zero_grad()``.

        Args:
            loss: of this step, a mean over the batch: for ``forecast``, and to be judged itself.

        Returns:
            The new rows; empty between looks, and where a look failed.
        """
        self.steps += 1
        if loss is not None:
            self.note_loss(loss)
        count = len(self.rows)
        with self._going_on():
            self.alerts += self._rates.alerts(self.steps)
            self._compare_counts()
            rate = self._rates.latest.taken()
            if rate is not None:
                self.alerts += self._signs.rate(self.steps, rate)
        if self.steps % self.every == 0:
            self._look()
        with self._going_on():
            self._prepare()
        self._speak()
        return self.rows[count:]

    def note_loss(self, loss: Tensor | float, *, steps: int = 1) -> None:
        """Note a loss of the latest step that ``step()`` was not given, such as a logged one.

        Args:
            loss: of the latest step, or the mean over the latest ``steps``.
            steps: above 1, losses are not compared with the small networks', of single steps.
        """
        _check_loss(loss)
        self.has_mean_losses = self.has_mean_losses or steps > 1
        if isinstance(loss, Tensor):
            # A running mean may be the same tensor at the next step.
            loss = loss.detach().clone()
        self._unread[self.steps] = loss

    def forecast(
        self, total_steps: int, schedule: Schedule, *, rate: float | None = None
    ) -> RunForecast:
        """Forecast the final loss of a language model from the losses that ``step`` was given.

        See ``nfd.forecast_run``. From then on, the mean loss between looks raises an alert where it
        leaves the band of the forecast by more than the noise of seeds, once. Call it again after
        ``load_state_dict``.

        Args:
            total_steps, schedule, rate: the steps, the schedule and the largest learning rate of
                the training run, as in ``nfd.forecast_run``.

        Returns:
            The forecast. Its ``refusal`` says where it is too wide to be relied on.

        Raises:
            ValueError, TypeError: naming the argument; with fewer than five losses after the
                warm-up.
        """
        self._read_losses()
        finite = {step: loss for step, loss in self.losses.items() if math.isfinite(loss)}
        self._forecast = forecast_run(finite, schedule, total_steps, rate=rate)
        return self._forecast

    def state_dict(self, *, start: bool = True) -> dict[str, Any]:
        """The state for a checkpoint: steps, rows, and tensors before training.

        Args:
            start: False leaves out the tensors, so that JSON can hold the state. Then the watch
                that loads it must be made from the untrained model.
        """
        self._read_losses()
        state: dict[str, Any] = {
            "steps": self.steps,
            "rows": self.table,
            "losses": list(self.losses.items()),
        }
        state["shapes"] = self._shapes()
        state["blocks"] = len(self._plan.blocks)
        state["sample"] = self._sample_hash
        state["outputs"] = self._first_outputs()
        state["signs"] = self._signs.state_dict()
        state["verified"] = asdict(self._verified)
        state["notified"] = [list(key) for key in sorted(self._notified)]
        if self._schedule is not None:
            state["rates"] = [[step, *rate] for step, rate in self._schedule.rates.items()]
        state["definition"] = DEFINITION
        if start:
            before = {part.name: getattr(self._baseline.before, part.name) for part in fields(Pass)}
            state["start"] = {
                "before": before,
                "seed": self._starts.seed,
                "kept": self._starts.kept,
            }
        return state

    def _shapes(self) -> dict[str, list[int]]:
        """The shapes of the tensors, those of one name in all blocks once."""
        blocks = frozenset(self._plan.blocks)
        return {
            in_any_block(name, blocks): list(entry.shape)
            for name, entry in self._plan.entries.items()
        }

    def _first_outputs(self) -> list[float]:
        """The first numbers that the model answered before training."""
        return [float(number) for number in self._baseline.before.outputs.flatten()[:_FEW_OUTPUTS]]

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError for the state of another watch; earlier ones do not say.

        It may be of a model of another size or of another sample. Without its tensors the model
        must be the untrained one.
        """
        if not isinstance(state, Mapping):
            return
        self._check_shapes(state)
        blocks = len(self._plan.blocks)
        if state.get("blocks", blocks) != blocks:
            raise InputError(
                f"state is of a watch of another model: it has {state['blocks']} blocks, and here "
                f"there are {blocks}. Load it into a watch of a model of the same sizes."
            )
        if state.get("sample", self._sample_hash) != self._sample_hash:
            raise InputError(
                "state is of a watch with another sample, to which meters compare what the model "
                "answers now. Pass the sample of the earlier watch."
            )
        if state.get("start") or not state.get("outputs") or self._own_start:
            return
        earlier = torch.tensor(state["outputs"])
        now = torch.tensor(self._first_outputs())
        if bool((now - earlier).abs().max() > _SAME_OUTPUTS * earlier.abs().max()):
            raise InputError(
                "state holds no tensors of before training (start=False), and the model of this "
                "watch answers otherwise than the untrained one did. Make the watch from the "
                "untrained model, and load the trained weights afterwards."
            )

    def _check_shapes(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError for the state of a model of another width."""
        shapes = state.get("shapes", {})
        for name, shape in self._shapes().items():
            if name in shapes and list(shapes[name]) != shape:
                raise InputError(
                    f"state is of a watch of another model: its {name!r} is {list(shapes[name])}, "
                    f"and here it is {shape}. Load it into a watch of a model of the same sizes."
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue an earlier watch of the same model and sample, as if there had been no stop.

        Load the weights of the model first. Alerts are found again from the rows; what the earlier
        watch warned of is not warned of again.

        Args:
            state: the result of ``state_dict``.

        Raises:
            ValueError: if it is not such a state, or is the state of another model or sample.
        """
        self._check_state(state)
        try:
            definition = int(state.get("definition", 1))
            stored = [WatchRow(**row) for row in state["rows"]]
            rows = [row for row in stored if means_the_same(row.meter, definition)]
            steps = check_count("state['steps']", state["steps"], minimum=0)
            losses = {int(step): float(loss) for step, loss in state.get("losses", ())}
            notified = {_Key(*key) for key in state.get("notified", ())}
            self._verified = Verified(**state.get("verified", {}))
            rates = {int(step): Rate(now, peak) for step, now, peak in state.get("rates", ())}
            signs = state.get("signs")
            if signs:
                self._signs.load_state_dict(signs)
            start = state.get("start")
            if start:
                self._baseline.begin_at(Pass(**start["before"]))
                self._starts.seed = start["seed"]
                self._starts.kept = dict(start["kept"])
        except (KeyError, TypeError) as error:
            raise InputError(
                "state must be what state_dict() of a watch of this model returned; got "
                f"{type(state).__name__} ({type(error).__name__}: {error})."
            ) from error
        self.steps = steps
        self.rows = []
        self._judged_last = 0
        self.losses = losses
        self._unread = {}
        self._forecast = None
        if self._schedule is not None:
            self._schedule = ScheduleCheck(self._schedule.factors, self._schedule.lr)
            for step, rate in rates.items():
                self._schedule.note(step, rate)
        self._begin()
        for step, rows_of_step in groupby(rows, key=lambda row: row.step):
            look = list(rows_of_step)
            self._add(look)
            self._add_new([alert for alert in self._signs.alerts if alert.step == step], look)
        looks = {row.step for row in rows}
        self.alerts += [alert for alert in self._signs.alerts if alert.step not in looks]
        self._loss_signs = LossSigns()
        for step, loss in losses.items():
            alert = self._loss_signs.add(step, loss)
            if alert is not None:
                self.alerts.append(alert)
        self.alerts.sort(key=lambda alert: alert.step)
        # A state without ``notified`` is of a watch that warned only of alerts that compare with
        # the plan.
        self._notified = notified

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per row, with ``step``, ``meter``, ``layer``, ``depth``, ``value``, ``kind``."""
        return [asdict(row) for row in self.rows]

    @property
    def line(self) -> str:
        """The latest look as one line for a log.

        It has the meters of the whole network, with a mark on values outside of their bands, and
        the number of alerts.
        """
        if not self.rows:
            return f"step {self.steps}: {self.failed or 'no look yet'}"
        step = self.rows[-1].step
        parts = []
        for row in at_steps(self.rows, [step]):
            if row.layer is None and row.meter != ALERTS:
                mark = "!" if outside(self, row) else ""
                parts.append(f"{row.meter} {row.value:.3g}{mark}")
        if self.expected is not None or self.alerts:
            parts.append(f"alerts {len(self.alerts)}")
        unjudged = not_judged(self)
        if unjudged:
            parts.append(unjudged)
        return f"step {step}: {', '.join(parts)}"

    @property
    def answer(self) -> Answer:
        """Whether the training is on course, why, and what to do next."""
        from nfd.watch.verdict import answer_of

        return answer_of(self)

    def first_sections(self) -> list[Section]:
        """The charts that a page and a notebook show first: the loss, faults, worst layers."""
        from nfd.watch.page import first_sections_of

        return first_sections_of(self)

    def band(self, row: WatchRow) -> Band | None:
        """The expected value of a row and its interval.

        None without ``expected``, where that lacks the meter, and once the learning rate left the
        schedule of the small networks.
        """
        if self.expected is None or self._is_off_schedule(row.step):
            return None
        return self.expected.band(row)

    def _is_off_schedule(self, step: int) -> bool:
        since = None if self._schedule is None else self._schedule.since
        return since is not None and step >= since

    @property
    def off_schedule(self) -> Difference | None:
        """Where the learning rate differs most from the small networks' schedule.

        None where it follows it, by up to 1.5 times, or their schedule is not known.
        """
        return None if self._schedule is None else self._schedule.largest

    @property
    def plan(self) -> Plan:
        """The plan of the model; without one, a plan whose factors are all 1."""
        return self._plan

    @property
    def module(self) -> nn.Module:
        """The model, without what wraps it."""
        return self._member.module

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that were seen to step the model."""
        return self._rates.optimizers

    @property
    def has_plans_rates(self) -> bool:
        """Whether every tensor was seen to train at its learning rate of the plan."""
        return self._verified.rates and self.is_planned

    @property
    def rate(self) -> float:
        """The tuned learning rate by the first step of the optimizer, its schedule included.

        Not-a-number before that step.
        """
        return self._rates.tuned

    @property
    def rate_step(self) -> int:
        """The step of ``rate``: the first with a learning rate above 0."""
        return self._rates.step

    @property
    def unjudged_since(self) -> int | None:
        """The last step whose look was compared with ``expected``, where a later look was not.

        Then the check ended, a look failed, or the learning rate left the small networks' schedule.
        0 if none was compared yet, None if the latest one was, or there is no ``expected``.
        """
        latest = self.steps - self.steps % self.every
        if self.expected is None or 0 < self._judged_last == latest:
            return None
        return self._judged_last

    # ---- A look

    def _look(self) -> None:
        """Read the meters and the losses, judge both, count the alerts, and call the listeners."""
        count = len(self.rows)
        with self._going_on():
            self._verified = self._rates.verified()
        rate = self._rates.latest.rate
        if self._schedule is not None and rate is not None:
            self._schedule.note(self.steps, rate)
        new_losses = self._read_losses()
        with self._going_on():
            self._read()
        with self._going_on():
            self._judge_losses(new_losses)
        if len(self.rows) > count:
            self.rows.append(
                WatchRow(self.steps, ALERTS, None, None, float(len(self.alerts)), None)
            )
        for listener in self.listeners:
            with self._going_on():
                listener(self)

    def _speak(self) -> None:
        """Warn of every new cause and kind of error; stop, or raise, if asked to."""
        earlier = {key.cause for key in self._notified}
        new = [alert for alert in self.alerts if _key(alert) not in self._notified]
        self._notified.update(map(_key, new))
        self.should_stop = self.should_stop or (bool(new) and self.on_alert == "stop")
        if self._error is not None and self._error not in self._failures:
            self._failures.add(self._error)
            notify(f"{self.failed} The training goes on.")
        if self.miscounted is not None and not self._has_told_counts:
            self._has_told_counts = True
            notify(self.miscounted)
        new_faults = faults_of(new)
        for fault in new_faults:
            # A cause that goes from layer to layer is warned of once; all are logged.
            is_repeated = bool(fault.layers) and fault.cause in earlier
            notify(str(fault), only_log=is_repeated)
        if new and self.on_alert == "raise":
            raise AlertError("\n".join(map(str, new_faults)))

    def _read(self) -> None:
        """Add the meters after the latest step, and judge them."""
        # The matrices of this step are used up, also where a look fails.
        previous = self._previous
        self._previous = None
        with apart(self._member.module):
            seen, calls, inputs = self._signs.read()
            look = self._baseline.look(previous, (seen, calls))
            rows = list(readings(self._member, look, self.steps))
            optimizers = self._rates.optimizers
            # Signs first: bands are not to explain what stopped or jumped.
            signs = self._signs.look(rows, seen, inputs, optimizers, self.losses)
            self._add(rows)
            self._add_new(signs, rows)

    def _compare_counts(self) -> None:
        """Note whether the optimizer stepped more or less often than this watch counted."""
        if self.miscounted is not None or self._own_start:
            return
        made = steps_made_by(self._rates.optimizers)
        if made is None:
            return
        counted = f"The optimizer has made {plural(made, 'step', 'steps')}, and the watch counted"
        if made > self.steps:
            self.miscounted = (
                f"{counted} {self.steps}: changes are measured from the weights at which it was "
                "made, or it is stepped too rarely. Make it before training, or load its state, "
                "and call step() after every step of the optimizer."
            )
        elif self.steps >= 2 * made and self.steps - made >= _SKIPPED:
            self.miscounted = (
                f"{counted} {self.steps}. Call step() once after every step of the optimizer, and "
                "not after every batch."
            )

    @property
    def _is_broken(self) -> bool:
        return any(alert.cause is Cause.BROKEN for alert in self.alerts)

    def _add_new(self, alerts: Sequence[Alert], rows: Sequence[WatchRow]) -> None:
        """Add alerts of signs, without those that the bands of the same look judge themselves.

        ``rows``: of the look.
        """
        raised = {(alert.cause, alert.layer) for alert in self.alerts}
        judged = set[str | None]()
        if self.expected is not None:
            judged = {row.layer for row in rows if self.band(row) is not None}
        for alert in alerts:
            is_judged = alert.cause is Cause.FROZEN and alert.layer in judged
            is_repeated = alert.cause is Cause.BROKEN and self._is_broken
            is_raised = (alert.cause, alert.layer) in raised
            if not is_judged and not is_repeated and not is_raised:
                self.alerts.append(alert)

    def _read_losses(self) -> dict[int, float]:
        """Read the losses that were noted, and return those of new steps."""
        unread = {step: float(loss) for step, loss in self._unread.items()}
        self._unread = {}
        new = {step: loss for step, loss in unread.items() if step not in self.losses}
        self.losses |= unread
        return new

    def _judge_losses(self, since_look: Mapping[int, float]) -> None:
        """Judge the losses since the latest look, and compare them with the forecast."""
        for step, loss in since_look.items():
            alert = self._loss_signs.add(step, loss)
            if alert is not None and not (alert.cause is Cause.BROKEN and self._is_broken):
                self.alerts.append(alert)
        forecast = self._forecast
        if forecast is None or any(alert.cause is Cause.LOSS for alert in self.alerts):
            return
        later = {step: loss for step, loss in since_look.items() if step > forecast.seen}
        band = forecast.outside(later)
        if band is not None:
            self.alerts.append(loss_alert(later, band))

    def _begin(self) -> None:
        """Alert to initial weights that are not the plan's, and to nothing else yet."""
        self.alerts: list[Alert] = []
        if not self._own_start:
            self.alerts = init_check(self._plan, self._starts.kept, self._starts.infos)
        self._prepare()

    def _prepare(self) -> None:
        """Copy the matrices that a step will change, where a look reads how it was aligned."""
        # The earlier copies are freed before new ones are made.
        self._previous = None
        is_due = (self.steps + 1) % self.every == 0
        self._signs.prepare(is_due=is_due)
        self._rates.latest.is_due = is_due
        if is_due:
            self._previous = self._baseline.weights()

    def _add(self, rows: list[WatchRow]) -> None:
        self.rows += rows
        rows = [row for row in rows if row.meter != ALERTS]
        if self.expected is None or not rows:
            return
        self.expected.verified = self._verified
        # Bands are of training by the plan, at the small networks' schedule: where the training is
        # not, all else may follow from it.
        only_frozen = off_plan(self) or self._is_off_schedule(rows[0].step)
        self.expected.only_frozen = only_frozen
        self.expected.explained = frozenset(
            alert.layer
            for alert in self._signs.alerts
            if alert.cause in (Cause.STOPPED, Cause.JUMP)
            and alert.layer is not None
            and alert.step <= rows[0].step
        )
        # The sign of numbers that are not finite names the tensor, too.
        alerts = [alert for alert in self.expected.alerts(rows) if alert.cause is not Cause.BROKEN]
        if only_frozen:
            # Signs may have raised it before, where this watch shows no band.
            raised = {(alert.cause, alert.layer) for alert in self.alerts}
            judged = [alert for alert in alerts if alert.cause is Cause.FROZEN]
            alerts = [alert for alert in judged if (alert.cause, alert.layer) not in raised]
        self.alerts += alerts
        if any(self.band(row) is not None for row in rows):
            self._judged_last = rows[0].step

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Note an error within it, whatever it is: a watch does not end the training."""
        try:
            yield
        except Exception as error:
            self._error = f"{type(error).__name__}: {in_brief(error)[:300]}"
            self.failed = f"The watch failed after step {self.steps} ({self._error})."


class _Key(NamedTuple):
    """What distinguishes an alert from others.

    A watch that resumes a training run compares learning rates and initial weights anew: their
    alerts are the same at any step, and stand at step 0.
    """

    step: int
    cause: str
    meter: str
    layer: str


def _key(alert: Alert) -> _Key:
    step = 0 if alert.tensors else alert.step
    return _Key(step, alert.cause.value, alert.meter, alert.layer or "")


class Starts(Mapping[str, Tensor]):
    """Tensors as they were before training, by name, on their device and in their type.

    A tensor that ``plan.apply_(model, seed)`` drew is not stored: its stream gives it again, bit
    for bit. All other tensors are copied to the CPU, such as those that a rule leaves as the model
    initialises them, or that were loaded. Without a seed all are copied.
    """

    def __init__(self, plan: Plan, seed: int | None, infos: Mapping[str, TensorInfo]) -> None:
        self.plan = plan
        self.seed = seed
        self.infos = infos
        self.kept = dict[str, Tensor]()
        for name, info in infos.items():
            now = whole(info.parameter.detach())
            start = None
            if seed is not None:
                start = drawn(plan, info, seed)
            if start is None or not torch.equal(start.to(now), now):
                self.kept[name] = now.to("cpu", copy=True)

    def __getitem__(self, name: str) -> Tensor:
        info = self.infos[name]
        start = self.kept.get(name)
        if start is None and self.seed is not None:
            start = drawn(self.plan, info, self.seed)
        assert start is not None
        return start.to(info.parameter.device, info.parameter.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)


def _own(part: Any) -> Any:
    """Copy a tensor; return anything else."""
    return part.detach().clone() if isinstance(part, Tensor) else part


def steps_made_by(optimizers: Sequence[torch.optim.Optimizer]) -> int | None:
    """Return how many steps optimizers have made; None where none of them counts."""
    counts = list[int]()
    for optimizer in optimizers:
        # The tensor that was stepped first has the most steps.
        states = (state for state in optimizer.state.values() if "step" in state)
        first = next(states, None)
        if first is not None:
            counts.append(int(first["step"]))
    return max(counts, default=None)


def unscaled(model: nn.Module, sample: Any, expected: Check | str | Path | Alarm | None) -> Plan:
    """Plan a model without a plan: all of its factors are 1.

    It has the optimizer of the check that is expected.
    """
    check_sample("sample", sample)
    optimizer = None
    if expected is not None and not isinstance(expected, Alarm):
        ladder = ladder_of(expected)
        optimizer = ladder.optimizer
        if rule_named(ladder.rule).scales_width:
            raise InputError(
                f"expected has rule={ladder.rule!r}, and the model has no plan: it trains as under "
                "rule='standard'. Check with rule='standard', or pass the plan."
            )
    return plan_of(modules(model)[""], rule="standard", sample=sample, optimizer=optimizer)


@contextmanager
def apart(model: nn.Module) -> Iterator[None]:
    """Run a model apart from its training in this context.

    It runs outside of a trainer's autocast; a compiled model runs as it was written; attention runs
    by its modules; random numbers come from other streams. Afterwards its buffers and the global
    streams are what they were.
    """
    buffers = []
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                buffers.append((module._buffers, name, buffer, buffer.clone(), buffer._version))
    places = {p.device for p in model.parameters() if p.device.type != "cpu"}
    # Accelerate puts a forward of 16 bits over the model's own, which it keeps as
    # ``_original_forward``. The untrained model was read before that, and differences of numbers of
    # 16 bits are noise where the updates are small.
    wrapped = None
    if "_original_forward" in model.__dict__:
        wrapped = model.__dict__.get("forward")
    with ExitStack() as stack:
        stack.enter_context(gradients())
        stack.enter_context(global_streams(0, sorted(places, key=str)))
        stack.enter_context(as_written())
        stack.callback(
            torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
        )
        # PyTorch's attention then calls its parts, for hooks to see them.
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            if wrapped is not None:
                model.forward = model.__dict__["_original_forward"]
            yield
        finally:
            if wrapped is not None:
                model.forward = wrapped
            for held, name, buffer, values, version in buffers:
                if buffer._version != version:
                    buffer.copy_(values)
                held[name] = buffer


# ---- What a watch knows of itself


def remarks_of(watch: Watch) -> list[str]:
    """Why the watch shows less than it seems to, in sentences.

    It failed, the check in ``expected`` ended, the training is not by the plan or the small
    networks' schedule, or that check found faults.
    """
    remarks = []
    if watch.failed is not None:
        remarks.append(watch.failed)
    if watch.miscounted is not None:
        remarks.append(watch.miscounted)
    expected = watch.expected
    if expected is None:
        return remarks
    if watch.unjudged_since is not None and watch.steps > expected.last_step:
        remarks.append(
            f"Nothing is judged after step {expected.last_step}: the check ends there. Check for "
            "more steps."
        )
    if off_plan(watch):
        remarks.append(
            "Until weights and learning rates are the plan's, only frozen and broken layers are "
            "judged."
        )
    if watch.off_schedule is not None:
        remarks.append(
            f"Only frozen and broken layers are judged: {watch.off_schedule}. Check with "
            "nfd.Task(batches, schedule=lambda step: ...), the factor of this run."
        )
    if not expected.is_of_sound and not off_plan(watch):
        remarks.append(
            f"The small networks had faults, too (check.ok is False), so bands are {DRIFTING:g} "
            "times as wide."
        )
    return remarks


def off_plan(watch: Watch) -> bool:
    """Whether the training differs from its plan in initial weights or learning rates."""
    return any(alert.tensors for alert in watch.alerts)


def not_judged(watch: Watch) -> str | None:
    """``not judged since step 6``, where the latest look was not compared with ``expected``.

    None where it was compared, or nothing is expected.
    """
    since = watch.unjudged_since
    if since is None:
        return None
    if since == 0:
        return "not judged yet"
    return f"not judged since step {since}"


def name_of(series: Series, rows: Sequence[WatchRow]) -> str:
    """What a series is of: the network, one layer, or so many layers of a kind."""
    if series.kind is None or series.stack is None:
        return series.kind or "the network"
    layers = len({row.layer for row in rows})
    if series.kind == "":
        return f"{layers} blocks"
    return f"{series.kind} of {layers} blocks"


def outside(watch: Watch, row: WatchRow) -> bool:
    """Whether a row lies outside of its band; False where it has none."""
    band = watch.band(row)
    return band is not None and not band.low <= row.value <= band.high


def _check_loss(loss: Any) -> None:
    """Raise InputTypeError for what is not one number; a tensor is not waited for."""
    if isinstance(loss, Tensor):
        arrived = f"a tensor of shape {list(loss.shape)} and {loss.dtype}"
        is_number = loss.numel() == 1 and not loss.is_complex()
    else:
        arrived = f"{loss!r} of type {type(loss).__name__}"
        is_number = isinstance(loss, SupportsFloat)
    if not is_number:
        raise InputTypeError(
            f"loss must be a number, or a tensor of one; got {arrived}. Pass the mean over the "
            "batch, such as loss.mean()."
        )
