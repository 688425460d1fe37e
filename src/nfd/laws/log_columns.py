"""The columns of a log: which one holds which field.

Columns are recognised by their usual names (``NAMES``), also after a prefix such as ``config.`` or
``summary/``, in words ("Number of parameters"), and with a unit ("Tokens (B)"). Where two columns
may be meant, the caller says which.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from nfd.core.errors import InputError
from nfd.core.words import nearest, number
from nfd.laws.rows import (
    Line,
    is_none,
    is_number,
    listed,
    may_be_speed,
    number_of,
    without_unit,
)

Field = Literal[
    "width",
    "depth",
    "parameters",
    "tokens",
    "samples",
    "batch",
    "steps",
    "sequences",
    "length",
    "decay",
    "lr",
    "rule",
    "seed",
    "loss",
    "flops",
    "unique_tokens",
    "epochs",
    "total_parameters",
    "step",
    "run",
    "state",
]

# What a loss may be other than nats, by the last words of its column.
_UNITS = {
    "bpb": "bits per byte",
    "bits_per_byte": "bits per byte",
    "bpc": "bits per character",
    "bits_per_char": "bits per character",
    "bits_per_character": "bits per character",
    "bpt": "bits per token",
    "bits_per_token": "bits per token",
    "err": "error rate",
    "error": "error rate",
    "error_rate": "error rate",
}
ERROR_RATE = "error rate"
# Whose loss it is, before that word.
_SPLITS = ("", "val_", "eval_", "test_", "train_")

# Usual names, written as ``_key`` writes them.
NAMES: dict[Field, tuple[str, ...]] = {
    "width": (
        "width",
        "d_model",
        "embd",
        "embed_dim",
        "hidden_size",
        "hidden_dim",
        "model_dim",
        "model_width",
    ),
    "depth": ("depth", "layer", "layers", "hidden_layers", "blocks"),
    "parameters": (
        "parameters",
        "N",
        "model_parameters",
        "trainable_parameters",
        "active_parameters",
        "parameters_active",
        "active",
    ),
    "tokens": (
        "tokens",
        "D",
        "train_tokens",
        "tokens_trained",
        "tokens_seen",
    ),
    # Sequences where their length is known, else what stands for tokens.
    "samples": (
        "samples",
        "samples_seen",
        "train_samples",
        "samples_trained",
        "seq_seen",
        "sequences_seen",
        "sequences_trained",
        "train_sequences",
    ),
    "batch": ("batch", "batch_tokens", "batch_size_tokens", "tokens_per_batch", "tokens_per_step"),
    "steps": ("steps", "max_steps", "train_steps"),
    "sequences": ("batch_size", "batch_size_sequences", "sequences_per_batch"),
    "length": (
        "seq_len",
        "max_seq_len",
        "context_len",
        "context_size",
        "context",
        "ctx",
        "block_size",
    ),
    "decay": ("decay", "weight_decay", "wd"),
    "lr": (
        "lr",
        "learning_rate",
        "max_lr",
        "max_learning_rate",
        "peak_lr",
        "peak_learning_rate",
        "base_lr",
        "eta_c",
    ),
    "rule": ("rule", "parametrization", "parameterization"),
    "seed": ("seed", "random_seed"),
    "loss": tuple(split + word for word in ("loss", *_UNITS) for split in _SPLITS),
    "flops": (
        "compute",
        "C",
        "flops",
        "compute_budget",
        "flops_budget",
        "train_flops",
        "model_flops",
        "compute_flops",
        "train_compute",
        "train_compute_flops",
        "c_flops",
    ),
    # Tokens of a data set that a training repeats, and how often.
    "unique_tokens": (
        "unique_tokens",
        "tokens_unique",
        "unique_train_tokens",
        "distinct_tokens",
        "unique",
        "dataset_tokens",
        "u",
    ),
    # Some count parts of one pass as epochs, in all of a training: ``total_epochs`` is not read.
    "epochs": ("epochs", "train_epochs", "repeats", "repetitions"),
    # Of a mixture of experts, where another column counts those that a token uses (``_totals``).
    "total_parameters": (),
    "step": ("step",),
    "run": ("run_id", "id", "key", "run", "run_name", "name"),
    "state": ("state", "status"),
}
# Words that names are recognised without.
_SILENT = {"", "n", "num", "number", "of", "the", "total", "final", "global", "in", "nats"}
_SYNONYMS = {
    "params": "parameters",
    "param": "parameters",
    "activated": "active",
    "validation": "val",
    "valid": "val",
    "training": "train",
    "iters": "steps",
    "iterations": "steps",
    "updates": "steps",
    "examples": "samples",
    "iter": "step",
    "losses": "loss",
    "lrs": "lr",
    "seeds": "seed",
    "sequence": "seq",
    "length": "len",
}
_EMBEDDINGS = re.compile(
    "_?(?:(non|no|without|excl|excluding)|(?:with|incl|including))_?emb(?:[a-z]*)", re.IGNORECASE
)
_QUOTIENT = re.compile("[A-Z][a-z]{0,2}/[A-Z][a-z]{0,2}")
_NATS = re.compile(r"[(\[]\s*nats?\b[^)\]]*[)\]]", re.IGNORECASE)
SIZES: tuple[Field, ...] = (
    "width",
    "depth",
    "parameters",
    "tokens",
    "samples",
    "batch",
    "steps",
    "sequences",
    "length",
    "flops",
    "unique_tokens",
    "epochs",
    "total_parameters",
)
# Names of a size that may also be words such as "tiny": read as parameters where all are numbers.
_SIZE_NAMES = ("size", "model_size")
# Repeated tokens are worth nearly as much as new ones up to so many times. Source: Muennighoff et
# al. 2023, "Scaling data-constrained language models".
_LIKE_NEW = 4.0
# How the literature calls sizes and compute.
_LETTERS: dict[Field, str] = {"parameters": "n", "tokens": "d", "flops": "c"}
# Words of losses that are not the loss of a finished run.
_OTHER_LOSSES = {
    "best",
    "min",
    "max",
    "init",
    "initial",
    "aux",
    "z",
    "router",
    "balance",
    "std",
    "se",
}
# Settings of which any above 1 makes a batch size possibly the size on one device.
_DEVICES = re.compile("grad(ient)?_acc\\w*|accumulat\\w*|world_size|gpus|devices")
_RISES = "is an accuracy, which rises: give the loss, or a column of the error rate, 1 less it."
_ONE_DEVICE = {"1", "1.0", "", "nan", "None"}
# Usual names of settings that move a best rate and that no field holds.
_SETTINGS = re.compile(
    "weight_decay|batch_size|warmup(_steps)?|optimizer|momentum|beta[12]|adamw_lr|dropout"
)


@dataclass(frozen=True)
class LogColumns:
    """The columns of a table, and those that the caller named.

    Attributes:
        table: the rows.
        given: columns that the caller named, by field; None for a field that is not to be read.
        names: columns that have values, or that hold a loss.
    """

    table: Sequence[Line]
    given: Mapping[str, str | None]
    names: Sequence[str]

    @classmethod
    def of(cls, table: Sequence[Line], given: Mapping[str, str | None]) -> LogColumns:
        """List the columns of a table."""
        columns = dict[str, None]()
        for line in table:
            columns |= dict.fromkeys(line)
        names = list[str]()
        for name in columns:
            has_values = any(not is_none(line.get(name)) for line in table)
            if has_values or _key(name) in NAMES["loss"]:
                names.append(name)
        return cls(table, given, names)

    def column_of(self, field: Field, *, needed: bool = False) -> str:
        """Choose the column of a field, empty for none.

        Raises:
            ValueError: where one is needed and there is none, or where several columns of a size or
                of a needed field hold different values.
        """
        candidates = self._candidates(field)
        if needed and not candidates:
            likely = self._likely_losses if field == "loss" else []
            example = likely[0] if likely else "..."
            raise InputError(
                f"no column of the log is known to be the {field}. "
                f"{self._name_it(field, example)}{self._hint(field)}"
            )
        if not candidates:
            return ""
        if (needed or field in SIZES) and self._differ(candidates):
            several = f"{listed(sorted(candidates))} may all be the {field}, and differ."
            raise InputError(f"{several} {self._name_it(field, candidates[0])}")
        return candidates[0]

    def batch_columns(self, notes: list[str]) -> dict[Field, str]:
        """Choose the columns of the sequences of a batch and of their length.

        Empty where they do not say the tokens of a batch.
        """
        sequences = self.column_of("sequences")
        length = self.column_of("length")
        if not (sequences and length):
            return {}
        devices = [name for name in self.names if self._may_split_a_batch(name)]
        if devices and "sequences" not in self.given and "global" not in sequences.lower():
            notes.append(
                f"{sequences!r} may be the batch of one device, as there is {listed(devices)}, and "
                "was not read. Name the column of the tokens of a batch, or of its sequences: "
                "columns={'sequences': ...}."
            )
            return {}
        return {"sequences": sequences, "length": length}

    def unread_settings(self, chosen: Mapping[Field, str]) -> list[str]:
        """List the columns that vary, move a best rate, and are not read."""
        unread = {*NAMES["tokens"], *NAMES["samples"], *NAMES["steps"]}
        if any(field in chosen for field in ("tokens", "samples", "steps")):
            unread = set()
        if "tokens" in self.given:
            unread = set()
        settings = list[str]()
        for name in self.names:
            is_setting = _SETTINGS.fullmatch(_key(name)) or _key(name) in unread
            varies = len({repr(line.get(name)) for line in self.table}) > 1
            if is_setting and varies and name not in chosen.values():
                settings.append(name)
        return settings

    def note_on_repeats(self, tokens: str | None) -> list[str]:
        """Warn of tokens that repeat often: the law takes each for a new one."""
        unique = [name for name in self.names if _key(name) in NAMES["unique_tokens"]]
        if tokens is None or not unique:
            return []
        most = 1.0
        for row, line in enumerate(self.table, 1):
            seen = line.get(tokens)
            distinct = line.get(unique[0])
            if is_none(seen) or is_none(distinct):
                continue
            count = number_of(distinct, unique[0], row, whole=True)
            if not count > 0:
                raise InputError(
                    f"column {unique[0]!r} must hold numbers above 0; row {row} has {distinct!r}."
                )
            most = max(most, number_of(seen, tokens, row, whole=True) / count)
        if most <= _LIKE_NEW:
            return []
        return [
            f"Tokens repeat up to {number(most)} times ({unique[0]!r}), and the law takes every "
            f"one for a new one, which holds up to about {_LIKE_NEW:g} times. Give the "
            "runs below that."
        ]

    def count_of_parameters(self, name: str | None) -> str:
        """Say how the column of parameters counts, where the log shows it; else empty."""
        counts = [column for column in self.names if _key(column) in NAMES["parameters"]]
        without = [column for column in counts if _lacks_embeddings(column)]
        if name is None or not (without or _EMBEDDINGS.search(name)):
            return ""
        if name in without:
            how = f"counted without embeddings ({name!r})"
        elif without:
            how = f"those of {name!r}, not {listed(without)}"
        else:
            how = f"those of {name!r}"
        return f"Parameters are {how}: ask for forecasts in the same count."

    def _candidates(self, field: Field) -> list[str]:
        """List the columns that may hold a field, the likeliest first; only the named one, if any.

        Columns that count embeddings come before others, and settings of the configuration before
        others. ``config/lr`` is ``config.lr`` too.
        """
        if field in self.given:
            wanted = self.given[field]
            if wanted is None:
                return []
            return [self._named(field, wanted)]
        if field == "total_parameters":
            return self._totals()
        places = dict[str, int]()
        ranks = dict[str, tuple[bool, bool, bool, bool]]()
        for name in self.names:
            if _key(name) not in NAMES[field] or name in self.given.values():
                continue
            if field == "epochs" and "total" in name.lower():
                continue
            # In a summary, the step is the length of a run that ended.
            if field == "step" and re.search(r"[./]", name):
                continue
            places[name] = NAMES[field].index(_key(name))
            is_outside_config = field != "loss" and not re.match(r"config[./]", name)
            is_error = field == "loss" and kind_of_loss(name) == ERROR_RATE
            # Of experts those that a token uses count: compute follows them.
            is_idle = field == "parameters" and not _is_active(name)
            ranks[name] = (is_idle, is_error, _lacks_embeddings(name), is_outside_config)
        if not ranks:
            return self._unusual(field)
        highest = min(ranks.values())
        best = [name for name in places if ranks[name] == highest]
        return sorted(best, key=lambda name: (places[name], name))

    def _totals(self) -> list[str]:
        """List the columns that count all parameters, where the law's counts active ones."""
        counts = [name for name in self.names if _key(name) in NAMES["parameters"]]
        active = self.given.get("parameters") or ""
        if not (active or any(map(_is_active, counts))):
            return []
        others = [name for name in counts if not _is_active(name) and name != active]
        said = [name for name in others if "total" in name.lower()]
        whole = [name for name in said or others if not _lacks_embeddings(name)]
        return whole[:1]

    def _unusual(self, field: Field) -> list[str]:
        """List the columns that hold a field under an unusual name, where there is no doubt.

        Letters of the literature may be small where two of them are there; a size is parameters
        where all of its cells are numbers; the only column whose name ends as that of a loss is the
        loss.
        """
        letter = _LETTERS.get(field, "")
        has_letters = "n" in self.names and ("d" in self.names or "c" in self.names)
        if has_letters and letter in self.names and letter not in self.given.values():
            return [letter]
        if field == "parameters":
            return [name for name in self.names if self._is_size(name)]
        if field == "loss" and len(self._likely_losses) == 1:
            return self._likely_losses
        return []

    def _is_size(self, name: str) -> bool:
        if _key(name) not in _SIZE_NAMES or name in self.given.values():
            return False
        cells = [line.get(name) for line in self.table]
        return all(is_none(cell) or is_number(str(cell)) for cell in cells)

    @property
    def _likely_losses(self) -> list[str]:
        """The columns whose name ends as that of a loss, with words that are not known."""
        likely = list[str]()
        for name in self.names:
            words = _key(name).split("_")
            ends_so = words[-1] == "loss" or kind_of_loss(name) not in ("loss", ERROR_RATE)
            if ends_so and not _OTHER_LOSSES.intersection(words):
                likely.append(name)
        return likely

    def _hint(self, field: Field) -> str:
        """Say of columns that are near a loss what to do with them."""
        if field != "loss":
            return ""
        if self._likely_losses:
            return f" It may be {listed(self._likely_losses)}."
        for name in self.names:
            if is_perplexity(name):
                return f" {name!r} is a perplexity: the loss is its logarithm. Add a column of it."
        for name in self.names:
            if is_accuracy(name):
                return f" {name!r} {_RISES}"
        return ""

    def _named(self, field: Field, wanted: str) -> str:
        """Find a column that the caller named, or raise ValueError."""
        for column in self.names:
            if column.replace("/", ".") == wanted.replace("/", "."):
                if field == "loss" and is_accuracy(column):
                    raise InputError(f"{column!r} {_RISES}")
                return column
        raise InputError(
            f"columns names {wanted!r} for the {field}, but the log has no such column with values."
            f"{nearest(wanted, self.names)} The columns are {listed(self.names)}."
        )

    def _differ(self, candidates: Sequence[str]) -> bool:
        """Say whether columns have different values in any row."""
        return any(self._differs(line, candidates) for line in self.table)

    @staticmethod
    def _differs(line: Line, names: Sequence[str]) -> bool:
        return len({repr(line.get(name)) for name in names}) > 1

    def _may_split_a_batch(self, name: str) -> bool:
        """Say whether a column counts devices, or accumulated batches, of more than one."""
        if not _DEVICES.fullmatch(_key(name)):
            return False
        return bool({str(line.get(name)) for line in self.table} - _ONE_DEVICE)

    def _name_it(self, field: str, name: str) -> str:
        shell = shlex.quote(f"{field}={name}")
        return (
            f"Name it: columns={{{field!r}: {name!r}}}, in the shell --columns {shell}. The "
            f"columns are {listed(self.names)}."
        )


def usual_field(name: str) -> str:
    """The field that a column holds by its usual name; empty for none."""
    for field, names in NAMES.items():
        if _key(name) in names:
            return field
    return ""


def is_quotient(name: str) -> bool:
    """Whether a column holds one size over another, as D/N and tokens/param do."""
    if _QUOTIENT.fullmatch(name):
        return True
    parts = name.split("/")
    return len(parts) == 2 and all(map(_is_size_word, parts)) and not usual_field(name)


def is_perplexity(name: str) -> bool:
    """Whether a column holds perplexities, by its name; not their logarithms."""
    words = re.split("[^a-z]+", name.lower())
    return not {"perplexity", "ppl"}.isdisjoint(words) and "log" not in words


def is_accuracy(name: str) -> bool:
    """Whether a column holds accuracies, by its name."""
    names_loss = re.search("loss|err", name, re.IGNORECASE)
    return not names_loss and bool(re.search("acc(uracy)?([^a-z]|$)", name, re.IGNORECASE))


def kind_of_loss(name: str) -> str:
    """Say what a column of losses holds: ``loss``, ``bits per byte`` or ``error rate``."""
    key = _key(name)
    for words, kind in _UNITS.items():
        if key == words or key.endswith(f"_{words}"):
            return kind
    return "loss"


def _is_active(name: str) -> bool:
    """Say whether a column counts the parameters that a token uses, by its name."""
    return "active" in _key(name).split("_")


def _lacks_embeddings(name: str) -> bool:
    """Say whether a column counts parameters without embeddings, by its name."""
    match = _EMBEDDINGS.search(name)
    return match is not None and bool(match[1])


def _is_size_word(text: str) -> bool:
    """Say whether a part of a name is that of a size, also in the singular."""
    key = _key(text)
    return any(key in NAMES[field] or f"{key}s" in NAMES[field] for field in SIZES)


@cache
def _key(name: str) -> str:
    """Write the name of a column as ``NAMES`` are written, without its prefix."""
    # The quotient of two letters of the literature, D/N, is neither of them.
    if _QUOTIENT.fullmatch(name):
        return "quotient"
    if may_be_speed(name):
        return "speed"
    *prefixes, last = re.split(r"[./]", without_unit(_NATS.sub("", name)))
    # So is tokens/param; tokens/batch is the batch.
    if prefixes and "/" in name and _is_size_word(prefixes[-1]) and _is_size_word(last):
        last = f"{prefixes[-1]}_per_{last}"
    text = _EMBEDDINGS.sub("", "_".join(re.findall(r"[^\W_]+", last)))
    # Only in capitals: n is a width, or a number of runs.
    if text in ("N", "D", "C"):
        return text
    if text in ("Na", "N_a", "Nact"):
        return "active"
    words = [word for word in text.lower().split("_") if word not in _SILENT]
    return "_".join(_SYNONYMS.get(word, word) for word in words)
