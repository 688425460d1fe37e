"""Columns of numbers that are not read, and in which rows differ that count as repeats.

A setting or a size in such a column would pass for the noise of seeds, so that it is said. What
only keeps the books of a run, such as its id, its time, its machine or another metric, is not: its
name shows it, or each row has a number of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from nfd.laws.log_columns import Field, is_quotient, usual_field
from nfd.laws.logged_runs import LoggedRun, alike_rows
from nfd.laws.rows import Line, as_number, is_none, is_number, listed, may_be_speed, without_unit


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of names that keep the books of a run: which it is, when, how fast and on what machine it
# ran, how it was logged, and other metrics.
_BOOKS = _set(
    """
    id ids idx index unnamed row job jobid pid port host node nodes hash commit uuid sha
    trial run runs attempt restart restarts resumed retry rep reps replica replicate repeat fold
    seed seeds rng url link order
    time timestamp date day created started finished updated runtime duration elapsed wall
    walltime hour hours minute minutes second seconds sec secs s ms eta heartbeat age
    speed throughput latency mfu hfu tps sps fps it its util utilization utilisation
    gpu gpus tpu tpus chip chips device devices world cpu cpus core cores memory mem ram vram gb
    gib mb mib worker workers thread threads watt watts power energy kwh co2 carbon cost price
    usd dollars parallel tp pp dp micro microbatch accum acc accumulation fsdp shard shards
    log logging save checkpoint ckpt interval every patience buffer prefetch cache epoch progress
    loss losses nll ce accuracy ppl perplexity bpb bpc bpt f1 bleu auc map em mse mae rmse
    r2 score scores metric error err std stderr sem se var variance ci norm norms grad
    gradient entropy kl aux z spikes skipped eval val test best summary hellaswag mmlu arc piqa
    boolq winogrande lambada gsm8k copa openbookqa triviaqa humaneval reward
    """
)
# Words of names that are settings or sizes, whatever their numbers are.
_SETTINGS = _set(
    """
    batch bs bsz seq len context ctx size dataset data samples sequences tokens ratio multiplier
    mult chinchilla overtraining flops compute parameters width dim hidden embed embd
    model layers layer blocks depth head heads ffn mlp vocab expert experts topk k
    wd beta beta1 beta2 betas eps epsilon steps epochs temperature
    alpha gamma sparsity scale smoothing version quotient bits precision stage weight mix
    fraction frac share portion subset unique repetitions lr rate eta cooldown anneal
    annealing noise augmentation patch resolution image budget
    """
)
# Words of shares and quotients, which are no sizes.
_SHARES = _set("per ratio fraction frac share portion mix weight")
# Words that make a setting of a name with any other word, as in grad_clip.
_ALWAYS = _set("clip clipping warmup decay dropout momentum lora coef coeff coefficient lambda")
# Fields of which another column is no setting of the run.
_OF_RESULTS = ("lr", "loss", "seed", "step", "run", "state")
# The speed of a device varies by less between alike runs; their compute would by more.
_SPEEDS = 3.0
_SAME = {
    "params": "parameters",
    "param": "parameters",
    "length": "len",
    "examples": "samples",
    "sequence": "sequences",
}
# In which field a setting with such a word may belong.
_FIELDS: Mapping[str, Field] = {
    "flops": "flops",
    "compute": "flops",
    "budget": "flops",
    "batch": "batch",
    "bs": "batch",
    "bsz": "batch",
    "parameters": "parameters",
    "samples": "tokens",
    "sequences": "tokens",
    "tokens": "tokens",
    "data": "tokens",
    "dataset": "tokens",
}


def note_on_unread(
    table: Sequence[Line], runs: Sequence[LoggedRun], names: Sequence[str]
) -> list[str]:
    """Warn of columns of numbers in which rows differ that are alike in all that is read.

    Args:
        table, runs: the rows, and what was read from each.
        names: the columns that were not read.
    """
    repeats = [lines for lines in alike_rows(table, runs) if len(lines) > 1]
    varying = list[str]()
    for name in names:
        groups = [numbers for lines in repeats if len(numbers := _numbers(lines, name)) > 1]
        if groups and _is_setting(table, name, groups):
            varying.append(name)
    if not varying:
        return []
    several = len(varying) > 1
    return [
        f"{'Columns' if several else 'Column'} {listed(varying)} {'vary' if several else 'varies'} "
        f"among rows that are alike in all that is read, and {'are' if several else 'is'} not "
        "used: these rows count as repeats, as seeds do. Give the rows of one value, or name a "
        f"size: {_example(varying)}."
    ]


def is_setting(table: Sequence[Line], name: str) -> bool:
    """Say whether a column holds a setting or a size of runs, not their books or results."""
    return _is_setting(table, name, ())


def _example(names: Sequence[str]) -> str:
    """How to name the first of these columns that may be a size."""
    for name in names:
        words = _words(name)
        fields = [_FIELDS[word] for word in words if word in _FIELDS]
        if fields and not _SHARES.intersection(words) and not is_quotient(name):
            return f"columns={{{fields[0]!r}: {name!r}}}"
    return "columns={'tokens': ...}"


def _numbers(lines: Sequence[Line], name: str) -> set[float]:
    """The numbers of a column; none where a cell holds another text."""
    cells = [line.get(name) for line in lines if not is_none(line.get(name))]
    if not all(is_number(str(cell)) for cell in cells):
        return set()
    return {as_number(str(cell)) for cell in cells}


def _is_setting(table: Sequence[Line], name: str, groups: Sequence[set[float]]) -> bool:
    """Say whether a column of numbers is a setting or a size: by its name, or as values repeat.

    Args:
        table: the rows.
        name: of the column.
        groups: its numbers in rows that are alike in all that is read.
    """
    words = _words(name)
    # The number of a row has no name.
    if not words:
        return False
    if is_quotient(name) or _ALWAYS.intersection(words) or words[-1:] == ["weight"]:
        return True
    if may_be_speed(name):
        return any(max(numbers) > _SPEEDS * max(min(numbers), 0.0) for numbers in groups)
    if _BOOKS.intersection(words) or usual_field(name) in _OF_RESULTS:
        return False
    if _SETTINGS.intersection(words) or re.match(r"(config|hparams)[./]", name):
        return True
    if re.match("_|summary[./]", name):
        return False
    values = [line.get(name) for line in table if not is_none(line.get(name))]
    return len({*map(str, values)}) <= len(values) / 2


def _words(name: str) -> list[str]:
    """The words of a name: those of ``grad_norm``, ``grad/norm`` and ``gradNorm`` are the same."""
    spaced = re.sub("(?<=[a-z])(?=[A-Z])", " ", without_unit(name))
    words = [word.lower() for word in re.findall(r"[^\W_]+", spaced)]
    return [_SAME.get(word, word) for word in words if word not in ("config", "hparams")]
