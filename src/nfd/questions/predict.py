"""``nfd.predict``: the training of infinitely wide networks, the paper's or yours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

from nfd.families.family import Family
from nfd.limits.prediction import LossPrediction, Prediction
from nfd.questions.predict_model import predict_model
from nfd.questions.predict_paper import predict_paper
from nfd.scaling.sizes import MakeModel


@overload
def predict(inputs: Any, targets: Any, **settings: Any) -> Prediction: ...


@overload
def predict(
    *, batches: Iterable[tuple[Any, Any]], make_model: MakeModel | Family, **settings: Any
) -> LossPrediction: ...


def predict(*args: Any, **settings: Any) -> LossPrediction:
    """Predict the training of an infinitely wide residual network, step by step, on given batches.

    ``nfd.predict(inputs, targets, ...)`` trains the paper's networks by SGD, and
    ``nfd.predict(batches=..., make_model=..., ...)`` what your constructor builds, by SGD or Muon. Networks of two
    widths n are trained, R of each from different seeds. Their mean loss is ``loss + a / n``, so that

        loss = loss(n) - bias,    bias = (loss(n / r) - loss(n)) / (r - 1),

    with standard errors from the spread of the networks. For infinite depth L is doubled, and ``2 loss_2L - loss_L``
    taken, until a doubling moves it by less than ``rtol``.

    Args:
        inputs: ``[steps, batch, d]`` or ``[steps, d]``; one update per step, in this order.
        targets: ``[steps, batch]`` or ``[steps]``: class ids, or floats for ``loss="mse"``.
        horizon, activation, block: of the paper's network, as in ``nfd.ResNet``.
        eta_c: its rate, which depends on neither width nor depth: a number, or one per step.
        momentum: of its SGD.
        classes: C; needed when the last class may be absent from ``targets``.
        feedback: ``"shared"``, the standard network; ``"independent"``, the decoupled one, whose limit is the
            paper's Definition 1; ``"static"``.
        eval_inputs: ``[n_eval, d]``, evaluated after the last step.
        eval_targets: ``[n_eval]``, of the kind of ``targets``, for the loss there.

        batches: (inputs, targets), one update for each: a list, or a loader. Inputs: a tensor, a tuple of arguments or
            a dict of keyword arguments.
        make_model: ``make_model(width, depth)``, or a family (``nfd.ConstructedFamily``).
        optimizer: ``"sgd"`` (the default), a kind of ``"muon"``, or another law that acts on matrices as a whole.
            AdamW on hidden matrices is refused; ``nfd.capacity`` fits wide models under every optimizer.
        lr: rate of the base; by default the one that ``nfd.check`` begins with.
        adamw_lr: the same of what Muon leaves to AdamW; ``lr`` where None.
        weight_decay: of the base.
        base_width, base_depth: the size that rates were tuned at; 64, and ``depth``, or 4 where that is infinite.
            Widths are multiples of this one, depths are doubled from it.
        rank: directions that the update of a structured matrix needs at most, where you know; memory is then predicted
            for them instead of for all rows of training.
        eval_batches: batches whose mean loss after the last step is predicted too.
        schedule: a function from the step to a factor on every rate, or from an optimizer to a scheduler of PyTorch.
        blocks, roles: as in ``nfd.plan``. version: as in ``nfd.transfer``.

        depth: L, or ``math.inf``, which needs a rule with a limit of depth: ``"depth-mup"`` or ``"complete-p"``. By
            default infinite for the paper's networks and 4 for others.
        rule: of the rates, and of the residual multiplier; by default ``"depth-mup"`` for the paper's networks and
            ``"complete-p"`` for others.
        loss: ``"cross-entropy"``, ``"mse"``, or for your networks a function of what they return and the targets.
        weights: ``"dense"``, ``"structured"`` (``nfd.StructuredLinear``), for the paper's networks also ``"deferred"``,
            or ``"auto"``, the cheapest by predicted cost. As structured weights have a law of their own at finite
            width, all networks of a prediction have them, or none.
        resolution: of structured weights, which a number asks for: shorter directions are not learned
            (``nfd.StructuredLinear``); by default 0.1, and for the paper's networks 0: their updates are kept sample by
            sample, and nothing is dropped. What it adds to the losses is estimated from narrow networks at
            half of it, and counted by the intervals. ``"auto"`` chooses resolution, width and replicates together: the
            cheapest, as predicted, for which the root of the squares of standard error and bias is within ``rtol``;
            exact layers where no resolution saves. The result's ``weighing`` has both.
        width: n, or ``"auto"`` for the width and replicates that ``rtol`` needs and ``memory`` allows.
        replicates: R; None for as many as ``rtol`` needs.
        rtol: wanted standard error, RMS over outputs relative to the RMS of the outputs (0.05); of your networks over
            losses, relative to these (0.01).
        memory: bound on the working set of one network, such as ``"4 GiB"``, checked before anything is trained.
        seed: of everything random.
        device: where to compute; by default the CPU, or where ``batches`` lie.
        out: directory whose store keeps every network that was trained, so that the same call goes on where it was
            stopped; None keeps nothing.
        executor: where networks are trained, such as ``nfd.runs.executors.processes.Processes()``; by default one
            after the other in this process. ``memory`` bounds each network, not all that are trained at once.
        progress: show a bar when stderr is a terminal.

    Returns:
        A ``Prediction``, or for your networks a ``LossPrediction``, without outputs. A run that diverged is a result,
        too: not-a-number from that step on, with a note.

    Raises:
        ValueError, TypeError: naming the argument; for rules and optimizers without a limit, and sizes beyond memory.
        RuntimeError: with the line of your code, where a network of yours cannot be trained.

    Source: Theorem 1 and Definition 1 for ``feedback="independent"``; docs/paper-notes.md for ``"shared"``;
    docs/mathematics/structured.md for structured weights; docs/mathematics/extrapolation.md for the estimates.

    Example::

        p = nfd.predict(inputs, targets, depth=4, eta_c=0.3, width=64, replicates=2)
        print(p)
        p.loss, p.loss_low, p.loss_high  # every step
    """
    ask = predict_model if settings.keys() & {"make_model", "batches"} else predict_paper
    prediction: LossPrediction = ask(*args, **settings)
    return prediction
