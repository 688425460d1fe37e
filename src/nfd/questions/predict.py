"""``nfd.predict``: the training of infinitely wide networks, the paper's or yours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import Parameter, Signature, signature
from typing import Any, overload

from nfd.core.errors import InputTypeError
from nfd.families.family import Family
from nfd.limits.prediction import LossPrediction, Prediction
from nfd.questions.predict_model import predict_model
from nfd.questions.predict_paper import predict_paper
from nfd.scaling.sizes import MakeModel
from nfd.training.task import Batch

_OTHER_NAMES = {"lr": "eta_c", "eta_c": "lr", "T": "horizon", "L": "depth", "n": "width", "rates": "eta_c"}


@overload
def predict(inputs: Any, targets: Any, **settings: Any) -> Prediction: ...


@overload
def predict(*, batches: Iterable[Batch], make_model: MakeModel | Family, **settings: Any) -> LossPrediction: ...


def predict(*args: Any, **settings: Any) -> LossPrediction:
    """Predict how an infinitely wide residual network trains: its loss after every step, with 95 % intervals.

    ``nfd.predict(inputs, targets)`` predicts losses and outputs of the paper's networks under SGD.
    ``nfd.predict(batches=..., make_model=...)`` predicts the losses of your own model.

    The paper's networks (``nfd.ResNet``) have outputs ``f = V h_L / n``. Every step subtracts ``eta_c n dloss/dW`` from
    each weight matrix W, where the loss is the mean over the batch of the cross-entropy, or of ``(f - y)**2 / 2``.

    Networks of two widths are trained on your batches: R of width n, and others that are r times narrower. Their mean
    loss at width n is ``loss + a / n``, so the two widths give the loss of the infinitely wide network:

        loss = loss(n) - bias,    bias = (loss(n / r) - loss(n)) / (r - 1).

    Standard errors come from the spread over seeds. For infinite depth, the depth L is doubled until the extrapolated
    loss ``2 loss_2L - loss_L`` changes by less than ``rtol``.

    Args:
        inputs: ``[steps, batch, d]``; one update per step, in this order. ``[steps, d]`` has one sample per step. The
            mean of ``inputs**2`` should be near 1.
        targets: ``[steps, batch]`` or ``[steps]``: class ids, or floats for ``loss="mse"``, which has one output.
        horizon, activation, block: of the paper's network, as in ``nfd.ResNet``; 1, "relu" and "one-layer" by default.
        eta_c: its learning rate, the same at every width and depth: a number (default 0.3), or one per step.
        momentum: of SGD; 0 by default.
        classes: C, the number of classes; by default one more than the largest class id in ``targets``, at least 2.
        feedback: ``"shared"`` for the standard network, ``"independent"`` for the decoupled one, whose limit is the
            paper's Definition 1, or ``"static"``.
        eval_inputs: ``[n_eval, d]``, evaluated after the last step.
        eval_targets: ``[n_eval]``, in the format of ``targets``; adds the evaluation loss.

        batches: your data: a list of (inputs, targets) or a loader, one update for each. Inputs are a tensor, a tuple
            of arguments or a dict of keyword arguments. A dict alone is passed to the model by keyword, and the model
            returns its loss (``nfd.check``).
        make_model: your model: ``make_model(width, depth)``, or a family (``nfd.ConstructedFamily``).
        optimizer: as in ``nfd.plan``, with its default. Optimizers that act on every entry, as AdamW does, train dense
            weights; under SGD and Muon they may be structured.
        lr: learning rate of the base; by default that of ``nfd.check``.
        adamw_lr: under Muon, the rate of the tensors that AdamW trains; ``lr`` if None.
        weight_decay: of the base.
        base_width, base_depth: size of the base, at which the rates were tuned. By default 64 and ``depth`` (4 if
            ``depth`` is infinite). Widths are multiples of ``base_width``; depths are doubled from ``base_depth``.
        rank: number of directions that the update of a structured matrix needs at most, if you know it. Memory is then
            predicted for these instead of for all rows of training.
        eval_batches: batches whose mean loss after the last step is predicted too.
        schedule: a function from the step to a factor on every rate, or from an optimizer to a PyTorch scheduler.
        blocks, roles: as in ``nfd.plan``. version: as in ``nfd.transfer``.

        depth: L, or ``math.inf`` under a rule with a limit in depth (``"depth-mup"``, ``"complete-p"``). By default
            infinite for the paper's networks, 4 for yours.
        rule: of the rates and the residual multiplier; by default ``"depth-mup"`` for the paper's networks,
            for yours that of ``nfd.plan``.
        loss: ``"cross-entropy"`` (default); ``"mse"``, the mean of ``(f - y)**2 / 2`` over the batch, for your model
            over all its outputs too, which is half of ``F.mse_loss``; or for your model a function of its output and
            the targets.
        weights: ``"dense"``, ``"structured"`` (``nfd.StructuredLinear``), for the paper's networks also ``"deferred"``,
            or ``"auto"`` for the kind with the lowest predicted cost. All networks of a prediction have the same kind,
            since structured weights have another distribution at finite width.
        resolution: of structured weights: the relative length below which directions are not learned. By default 0.1
            for your model under SGD. It is 0 under optimizers that normalise, such as Muon, which step short directions
            as far as long ones, and for the paper's networks, which keep every update. Its effect on the losses is
            measured by narrow networks without one, and included in the intervals. ``"auto"`` chooses resolution, width
            and replicates of the lowest predicted cost for which ``sqrt(stderr**2 + bias**2)`` is within ``rtol``; the
            result explains the choice in ``weighing``.
        width: n, or ``"auto"`` for the width and replicates that reach ``rtol`` within ``memory``.
        replicates: R; None for as many as ``rtol`` needs.
        rtol: the relative standard error that you want: of the outputs of the paper's networks (RMS, default 0.05), or
            of the losses of your model (default 0.01).
        memory: bound on the memory of one network, such as ``"4 GiB"``, checked before training.
        seed: of all random numbers.
        device: where to compute; by default the CPU, or the device of ``batches``.
        out: directory that stores every trained network, so that the same call continues after a stop. None stores
            nothing.
        executor: where networks are trained, such as ``nfd.runs.executors.processes.Processes()``. By default one after
            the other in this process. ``memory`` bounds each network, not their sum.
        progress: a bar when stderr is a terminal, by default. True also prints a line every half minute where it is
            none; False shows nothing.

    Returns:
        A ``Prediction``; for your model a ``LossPrediction``, which has no outputs. If training diverges, numbers are
        not-a-number from that step on, and ``note`` says so. ``loss_replicates`` gives the difference of two
        predictions with an interval (docs/two-limits.md). Estimates and intervals are not clipped: where a loss is
        smaller than its error they may be negative, as otherwise their mean would be too large.

    Raises:
        ValueError, TypeError: naming the argument; also for rules and optimizers without a limit, and for sizes that
            exceed ``memory``.
        RuntimeError: naming the line of your code at which your model cannot be trained.

    Source: Theorem 1 and Definition 1 for ``feedback="independent"``; docs/paper-notes.md for ``"shared"``;
    docs/mathematics/structured.md for structured weights; docs/mathematics/extrapolation.md for the estimates.

    Example::

        p = nfd.predict(inputs, targets, depth=4, eta_c=0.3, width=64, replicates=2)
        print(p)
        p.loss, p.loss_low, p.loss_high  # of every step
    """
    ask = predict_model if settings.keys() & {"make_model", "batches"} else predict_paper
    _check_arguments(ask, args, settings)
    prediction: LossPrediction = ask(*args, **settings)
    return prediction


def _check_arguments(ask: Callable[..., LossPrediction], args: tuple[Any, ...], settings: Mapping[str, Any]) -> None:
    """TypeError that names an argument which is missing or unknown, and the one that was probably meant."""
    known = signature(ask).parameters
    networks = "your model" if ask is predict_model else "the paper's networks"
    for name in settings.keys() - known.keys():
        near = [other for other in (_OTHER_NAMES.get(name),) if other in known] or get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputTypeError(f"nfd.predict of {networks} has no argument {name!r}.{hint}")
    try:
        signature(ask).bind(*args, **settings)
    except TypeError as error:
        raise InputTypeError(
            f"nfd.predict takes inputs and targets, or batches= and make_model=; for {networks}: {error}."
        ) from None


def _signature() -> Signature:
    """Every argument of both forms; its default is ``...`` where it has none or the forms have different ones."""
    forms = [signature(ask).parameters for ask in (predict_paper, predict_model)]

    def shared(parameter: Parameter) -> Parameter:
        defaults = [form[parameter.name].default for form in forms if parameter.name in form]
        differs = Parameter.empty in defaults or any(other != defaults[0] for other in defaults)
        return parameter.replace(default=... if differs else defaults[0])

    every = {**forms[0], **{name: p for name, p in forms[1].items() if name not in forms[0]}}
    return Signature([shared(parameter) for parameter in every.values()], return_annotation=LossPrediction)


predict.__signature__ = _signature()  # type: ignore[attr-defined]  # for help() and completion
