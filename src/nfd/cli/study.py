"""``nfd study``: the main job."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class StudyCommand:
    """Predict how an infinitely wide residual network trains on real data, and compare real networks with it.

    Writes report.html, result.json, curves.csv, gaps.csv, curves.pdf and curves.png to OUT.
    """

    out: str = "out/study"
    """directory for the results"""
    data: str = "digits"
    """data set: digits (scikit-learn's, nothing to download)"""
    depth: int = 8
    """number of residual blocks L"""
    horizon: float = 1.0
    """time horizon T"""
    activation: str = "relu"
    """relu, tanh, erf, gelu or identity"""
    eta_c: float = 0.3
    """learning rate that depends on neither width nor depth"""
    steps: int = 40
    """steps of SGD"""
    batch: int = 16
    """samples per step"""
    widths: tuple[int, ...] = (64, 256, 1024)
    """widths of the real networks"""
    seeds: int = 5
    """real networks of each width"""
    limit_width: int = 4096
    """width of the networks that stand for the infinitely wide one"""
    replicates: int = 6
    """how many of those are averaged"""
    seed: int = 0
    """seed of everything random"""

    def run(self, command: str) -> None:
        """Check, run, write, and print the reading."""
        from nfd.experiment.study import StudyConfig, study
        from nfd.report.study import write_study
        from nfd.store.files import prepare_directory

        config = StudyConfig(**{f.name: getattr(self, f.name) for f in fields(StudyConfig)})
        directory = prepare_directory(self.out)
        done = study(config, progress=True)
        paths = write_study(done, directory, command)
        for sentence in done.reading:
            print(sentence)
        print(f"Report: {next(p for p in paths if p.name == 'report.html')}")
