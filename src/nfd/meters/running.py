"""All networks of a check: several at a time where nothing random is drawn, from streams of their own where it is."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import nn

from nfd.core.errors import InputError
from nfd.core.machine import threads
from nfd.core.progress import Bar
from nfd.core.random import derive, global_state, global_streams
from nfd.core.tables import Row
from nfd.meters.job import Built, Job
from nfd.scaling.calls import as_written, attention_by_parts
from nfd.training.blame import blaming_the_model

_MOST_AT_A_TIME = 8  # networks; each is in memory three times

Which = tuple[int, int, int]  # width, depth, seed


def all_runs(job: Job, wanted: Sequence[Which], shown: Bar) -> tuple[list[Row], bool]:
    """Every network, and whether one drew random numbers in training, as dropout does.

    The smallest is trained alone, then the largest first, several at a time, one thread each, as long as none draws
    random numbers. The global random streams are shared by threads. Networks that were trained together while one moved
    because a network drew from it are trained again, alone, each from streams of its own, and so are all that follow.
    """
    shown.plan(sum(width * depth for width, depth, _ in wanted), "checking")
    *rest, smallest = sorted(wanted, key=lambda w: w[0] * w[1], reverse=True)
    runs, starts, most = dict[Which, Row](), _Starts(), torch.get_num_threads()

    def kept(trained: Mapping[Which, Row]) -> None:
        runs.update(trained)
        for width, depth, _ in trained:
            shown.advance(width * depth)

    # Set here, for all threads: each would find the others' settings and leave them behind.
    with global_streams(devices=job.devices), attention_by_parts(), as_written():
        trained, draws, alone = _alone(job, smallest, starts)
        kept({smallest: trained})
        at_a_time = min(most, _MOST_AT_A_TIME)
        while rest and not alone and at_a_time > 1:
            batch = rest[:at_a_time]
            with threads(1):
                together = _together(job, batch, starts)
            alone = together is None
            if together is not None:
                kept(together)
                rest = rest[at_a_time:]
        for which in rest:
            trained, drew, _ = _alone(job, which, starts)
            draws = draws or drew
            kept({which: trained})
    return [runs[which] for which in wanted], draws


def _run(job: Job, which: Which, built: Built) -> Row:
    with blaming_the_model(*which[:2], job.batches[0]):
        return job.run(built)


def _built(job: Job, which: Which) -> Built:
    with blaming_the_model(*which[:2], job.batches[0]):
        return job.built(*which)


def _alone(job: Job, which: Which, starts: _Starts) -> tuple[Row, bool, bool]:
    """A network by itself, on streams of its own, whether it drew from them, and whether no other may be trained beside
    it."""
    built = _built(job, which)
    starts.add(which, built.member.module)
    with global_streams(derive(which[2], "training", *which[:2]), job.devices):
        before = global_state()
        run = _run(job, which, built)
        draws = global_state() != before
        return run, draws, draws or _accelerated(built.member.module)


def _together(job: Job, batch: Sequence[Which], starts: _Starts) -> dict[Which, Row] | None:
    """Networks at the same time; None if one of them drew random numbers."""
    built = [_built(job, which) for which in batch]  # one after another: that moves the streams
    for which, network in zip(batch, built, strict=True):
        starts.add(which, network.member.module)
    before = global_state()
    with ThreadPoolExecutor(len(batch)) as pool:
        try:
            trained = dict(zip(batch, pool.map(partial(_run, job), batch, built), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return trained if global_state() == before else None


class _Starts:
    """How networks began, to tell seeds that give the same one."""

    def __init__(self) -> None:
        self._seeds: dict[tuple[int, int, int], int] = {}

    def add(self, which: Which, model: nn.Module) -> None:
        width, depth, seed = which
        print_ = 0
        for parameter in model.parameters():
            print_ = zlib.crc32(parameter.detach().cpu().flatten().view(torch.uint8).numpy().tobytes(), print_)
        other = self._seeds.setdefault((width, depth, print_), seed)
        if other != seed:
            raise InputError(
                f"make_model({width}, {depth}) gives the same network for seeds {other} and {seed}, but intervals "
                "come from differences between seeds. Does it set a seed of its own, or load weights? Draw from the "
                "global streams of PyTorch, NumPy or Python, which are seeded here."
            )


def _accelerated(model: nn.Module) -> bool:
    return any(parameter.device.type != "cpu" for parameter in model.parameters())
