"""Transfer: optima, drifts and regrets of networks whose losses are known, and the command at a small size."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from nfd.cli.main import main
from nfd.experiment.runs import run_key
from nfd.experiment.settings import RunConfig, TransferConfig
from nfd.store.rows import Record
from nfd.store.store import Store
from nfd.sweep.optimum import Scores, vertex
from nfd.sweep.sweep import Sweep
from nfd.sweep.transfer import transfer
from nfd.sweep.transfer_findings import sentence, table

RATES = torch.arange(-4.0, 3.0, dtype=torch.float64)


def parabolas(*optima: float) -> torch.Tensor:
    """One seed each, with its best rate at this power of two."""
    return torch.stack([0.5 + 0.02 * (RATES - o).square() for o in optima])


def test_the_vertex_of_a_parabola_is_found() -> None:
    assert float(vertex(RATES, parabolas(-0.7))) == pytest.approx(-0.7)
    found = Scores(RATES, parabolas(-0.9, -0.7, -0.5)).optimum()
    assert found.value == pytest.approx(-0.7)
    assert found.stderr == pytest.approx(0.2 / math.sqrt(3))  # the vertex of a mean is the mean of vertices
    assert found.low < -0.9 < -0.5 < found.high


def test_the_parabola_is_fitted_near_the_best_rate_alone() -> None:
    bent = parabolas(-1.0)
    bent[:, RATES >= 1] = 2.3  # divergence beyond
    assert float(vertex(RATES, bent)) == pytest.approx(-1.0, abs=0.05)


def test_an_optimum_at_an_end_is_known_as_one() -> None:
    assert Scores(RATES, parabolas(-7.0)).edge == -1
    assert Scores(RATES, parabolas(9.0)).edge == 1
    assert Scores(RATES, parabolas(0.0)).edge == 0
    assert Scores(RATES, torch.full((2, len(RATES)), 2.3)).edge == -1  # nothing learns at these rates
    assert float(vertex(RATES, parabolas(9.0))) <= float(RATES[-1])


class Known:
    """A sweep whose losses are a parabola around ``2^(start + p log2 L + q log2 n)``, with a little noise per seed."""

    progress = False

    def __init__(self, p: float, q: float, start: float) -> None:
        self.p, self.q, self.start, self.asked = p, q, start, list[RunConfig]()

    def run(self, configs: Iterable[RunConfig], label: str = "") -> list[Record]:
        found = []
        for config in configs:
            self.asked.append(config)
            best = self.start + self.p * math.log2(config.depth) + self.q * math.log2(config.width)
            noise = torch.randn((), generator=torch.Generator().manual_seed(config.seed)).item()
            loss = 0.5 + 0.05 * (math.log2(config.eta_c) - best + 0.01 * noise) ** 2
            loss = math.inf if loss > 2.0 else loss + 0.001 * noise
            metrics = {"first_loss": 2.4, "train_loss": loss, "test_loss": loss}
            found.append(Record(run_key(config, ""), "g", "done", config.model_dump(), metrics))
        return found


def config(**settings: Any) -> TransferConfig:
    return TransferConfig(rules=("depth-mup",), widths=(16, 32), depths=(2, 8), **settings)


@pytest.mark.parametrize(("p", "q"), [(0.0, 0.0), (-0.5, 0.25), (-1.5, 0.0)])
def test_drifts_are_found_and_grids_extended(p: float, q: float) -> None:
    known = Known(p, q, start=-0.5)
    (found,) = transfer(config(), cast(Sweep, known))
    for axis, slope in (("depth", p), ("width", q)):
        drift = found.drift(axis)  # type: ignore[arg-type]
        assert drift is not None
        assert drift.value == pytest.approx(slope, abs=0.02)
        assert drift.stderr < 0.02
    assert found.bracketed
    for (n, L), cell in found.cells.items():
        assert cell.optimum().value == pytest.approx(-0.5 + p * math.log2(L) + q * math.log2(n), abs=0.05)


def test_the_regret_is_what_the_largest_network_pays() -> None:
    (found,) = transfer(config(), cast(Sweep, Known(-1.0, 0.0, start=0.0)))
    assert found.regret.foreign_eta == pytest.approx(0.5, rel=0.02)  # best at depth 2
    assert found.regret.own_eta == pytest.approx(0.125, rel=0.02)
    assert found.regret.loss.value == pytest.approx(0.05 * 2**2, abs=0.01)
    assert found.regret.share.value == pytest.approx(0.2 / (math.log(10) - 0.5), abs=0.01)
    assert found.verdict == "DRIFTS"
    (kept,) = transfer(config(), cast(Sweep, Known(0.0, 0.0, start=-1.0)))
    assert kept.verdict == "TRANSFERS"
    assert "it transfers" in sentence(kept)
    assert table([found, kept])[0]["drift per doubling of depth"].startswith("-1.00")


def test_one_axis_alone_has_no_drift_along_the_other() -> None:
    one = TransferConfig(rules=("depth-mup",), widths=(16,), depths=(2, 8))
    (found,) = transfer(one, cast(Sweep, Known(-0.5, 0.0, start=0.0)))
    assert found.drift("width") is None
    assert "doubling of width" not in sentence(found)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"eta_c": (0.1, 0.2)}, "three or more"),
        ({"eta_c": (0.1, 0.2, 0.25)}, "one factor"),
        ({"widths": (16,), "depths": (4,)}, "two sizes"),
        ({"rules": ("mup", "mup")}, "different"),
        ({"block": "one-layer", "rules": ("depth-mup-inner",)}, "two-layer"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TransferConfig(**settings)


SMALL = [
    *("--widths", "8,16", "--depths", "2,4", "--steps", "6", "--seeds", "2", "--executor", "inline"),
    *("--rules", "depth-mup", "mup"),
]


def test_the_command_writes_its_page_and_trains_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transfer", *SMALL, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out.count("depth-mup: the best eta_c is") == 1
    assert said.err == ""
    found = json.loads((tmp_path / "result.json").read_text())
    assert [rule["rule"] for rule in found["rules"]] == ["depth-mup", "mup"]
    assert {"value", "low", "high"} == set(found["rules"][0]["drift"]["depth"])
    for name in ("report.html", "depth.png", "width.pdf", "loss-mup.csv", "transfer.csv", "config.toml"):
        assert (tmp_path / name).stat().st_size > 100
    with Store.read(tmp_path) as store:
        runs = len(store)
    assert (
        main(["transfer", "--config", str(tmp_path / "config.toml"), "--executor", "inline", "--out", str(tmp_path)])
        == 0
    )
    assert capsys.readouterr().out == said.out
    with Store.read(tmp_path) as store:
        assert len(store) == runs


def test_ready_configurations_are_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transfer", "--config", "fig5-row2", "--data", "cifar10"]) == 2
    assert "needs data_dir" in capsys.readouterr().err
    assert main(["transfer", "--config", "fig5-row"]) == 2
    assert "Did you mean 'fig5-row2'?" in capsys.readouterr().err
    for name in ("cifar10", "deep", "fig5-row2"):
        presets = Path(__file__).parents[1] / "src/nfd/experiment/presets/transfer"
        assert TransferConfig.load(presets / f"{name}.toml").depths
