"""``nfd predict``: the limit itself."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Predict:
    """Predict the training loss of an infinitely wide, with --depth inf infinitely deep, residual network on digits.

    Writes result.json and predict.csv (step, loss, standard error) to OUT.
    """

    out: str = "out/predict"
    """directory for the results"""
    depth: float = 16.0
    """number of residual blocks, or inf"""
    steps: int = 12
    """steps of SGD"""
    batch: int = 8
    """samples per step"""
    eta_c: float = 0.3
    """learning rate that depends on neither width nor depth"""
    horizon: float = 1.0
    """time horizon T"""
    activation: str = "relu"
    """relu, tanh, erf, gelu or identity"""
    block: str = "one-layer"
    """one-layer or two-layer"""
    rule: str = "depth-mup"
    """learning-rate rule: depth-mup, depth-mup-inner, complete-p, mup or standard"""
    feedback: str = "shared"
    """shared (the standard network), independent (the paper's decoupled one) or static"""
    momentum: float = 0.0
    """momentum of SGD"""
    width: str = "auto"
    """width of the networks that stand for the infinitely wide one, or auto"""
    replicates: int | None = None
    """how many of them are averaged; as many as rtol needs by default"""
    rtol: float = 0.05
    """wanted standard error, relative to the RMS of the outputs"""
    memory: str = "4 GiB"
    """bound on the memory of one network"""
    seed: int = 0
    """seed of everything random"""

    def run(self, command: str) -> None:
        """Check, run, write, and print the curve in a few lines."""
        from nfd.data.digits import digits
        from nfd.limits.predict import predict
        from nfd.store.files import prepare_directory, write_csv, write_json

        directory = prepare_directory(self.out)
        inputs, targets = digits(self.seed).batches(self.batch, self.steps, self.seed)
        p = predict(
            inputs,
            targets,
            depth=int(self.depth) if self.depth.is_integer() else self.depth,
            classes=10,
            width=_width(self.width),
            progress=True,
            **{k: v for k, v in asdict(self).items() if k not in ("out", "depth", "steps", "batch", "width")},
        )
        pairs = zip(p.loss.tolist(), p.loss_stderr.tolist(), strict=True)
        rows = [{"step": k, "loss": loss, "stderr": error} for k, (loss, error) in enumerate(pairs)]
        facts = ("depths", "width", "replicates", "weights", "bias", "bias_stderr", "converged", "growth", "seconds")
        summary: dict[str, Any] = {name: getattr(p, name) for name in (*facts, "note")}
        config = {k: v if v != math.inf else "inf" for k, v in asdict(self).items()}
        write_csv(directory / "predict.csv", rows)
        path = write_json(directory / "result.json", {"config": config, "command": command, **summary, "rows": rows})
        first, last = rows[0], rows[-1]
        print(
            f"Loss {first['loss']:.4f} +- {first['stderr']:.4f} at step 0, {last['loss']:.4f} +- "
            f"{last['stderr']:.4f} at step {last['step']} (depth {', '.join(map(str, p.depths))}; width {p.width}, "
            f"{p.replicates} replicates, {p.weights} weights; width bias {p.bias:.1e} +- {p.bias_stderr:.1e})."
        )
        if p.note or self.depth == math.inf:
            print(p.note or "The limit in depth was reached.")
        print(f"Result: {path}")


def _width(value: str) -> int | str:
    if value == "auto":
        return value
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"width must be a whole number or 'auto'; got {value!r}.") from None
