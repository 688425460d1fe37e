"""``nfd paper claims``: every statement of the paper that can be measured, and a verdict on each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nfd.core import InputError, expanded, nearest, option
from nfd.paper.commands.figure import PaperOptions, say
from nfd.paper.settings import FigureConfig


@dataclass(frozen=True)
class ClaimsCommand(PaperOptions):
    """Judge the paper's statements, each by a measurement with its interval.

    Reads the networks of the figures from STORE, trains those that are missing, and writes result.json, claims.md,
    report.html to OUT.
    """

    out: str = option("out/claims", "directory for the results")
    store: str | None = option(None, "directory of trained networks, such as nfd paper figure's OUT; by default OUT")
    only: tuple[str, ...] = option(
        (), "judge these, by id or figure such as fig5, and train only what they need; others keep their rows in OUT"
    )

    def kept(self) -> list[str]:
        return [*super().kept(), *(["claims.md"] if self.only else [])]

    def check_used(self, config: FigureConfig) -> None:
        from nfd.paper.claims.table import CLAIMS, chosen

        if unknown := [name for name in self.only if not chosen([name])]:
            close = nearest(unknown[0], [claim.id for claim in CLAIMS])
            raise InputError(
                f"--only takes ids of statements, their beginnings, or figures such as fig5; got {', '.join(unknown)}."
                f"{close} docs/claims.md lists all."
            )
        super().check_used(config)
        if self.store is not None and not (expanded(self.store) / "runs.sqlite").exists():
            raise InputError(f"--store {self.store!r} holds no networks. Name the OUT of nfd paper figure, or drop it.")

    def answer(self, config: FigureConfig, directory: Path, command: str) -> int:
        from nfd.paper.claims.table import chosen, evidence_for, table, updated
        from nfd.paper.earlier import judged_before
        from nfd.paper.figures.beside_captions import beside_captions
        from nfd.paper.pages import write_claims

        with self.sweep(self.runs_in(directory)) as sweep:
            evidence = evidence_for(config, sweep, say=say, at_need=bool(self.only))
            judged = table(evidence, chosen(self.only), progress=not self.only)
        for row in judged:
            print(f"{row['verdict'].upper():24} {row['id']}: {row['statement']} {row['reading']}")
        rows = updated(judged_before(directory), judged) if self.only else judged
        self.warn(config)
        beside = beside_captions(evidence.read, len(evidence.dataset.train))
        print(f"Report: {write_claims(config, rows, evidence.dataset.title, directory, command, beside)}")
        return 0
