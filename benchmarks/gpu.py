"""Time the phases of a deferred network of width 262,144 on any device, against their bounds.

Usage: ``python -m benchmarks.gpu [--device cuda] [--width N]``. The bound is what must be read and
written, at the bandwidth measured on the same device: six passes over the factors per query, and
the weights of input and readout.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import nfd
from benchmarks.counted import query_work
from benchmarks.measure import Row, apart, best
from makers.tables import terminal
from nfd.core.checks import check_device
from nfd.core.machine import peak_memory
from nfd.data import digits

WIDTH = 262_144
DEPTH = 4
STEPS = 12
BATCH = 8
ETA_C = 0.1
_D = 64
_C = 10
_FLOAT = 4


def large(device: str, width: int = WIDTH) -> list[Row]:
    """A row for each phase, measured in a fresh process: its peak memory is the network's."""
    rows: list[Row] = apart(f"benchmarks.gpu:phases({device!r}, {width})")
    return rows


def phases(device: str, width: int) -> list[Row]:
    """Train for ``STEPS`` steps and time the phases of each."""
    wait = _waiting(str(check_device(device)))
    x, y = (v.to(device) for v in digits().batches(BATCH, STEPS, 0))
    # Kernels are loaded, generators made.
    _trained(256, x[:2], y[:2], device, wait)
    before = _held(device)
    seconds = _trained(width, x, y, device, wait)
    peak = _peak(device) - before
    speed = _bandwidth(device, wait)
    moved = _bytes_moved(width)
    # Four vectors for every sample.
    layers = DEPTH * _FLOAT * 4 * width * STEPS * BATCH
    return [
        {
            "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
            "phase": phase,
            "width": width,
            "depth": DEPTH,
            "samples": STEPS * BATCH,
            "ms per sample": 1e3 * seconds[phase] / (STEPS * BATCH),
            "bound, ms": 1e3 * moved[phase] / speed / (STEPS * BATCH),
            "share of the bound": moved[phase] / speed / seconds[phase],
            "read, GB/s": speed / 1e9,
            "peak, GiB": peak / 2**30,
            "predicted for the layers, GiB": layers / 2**30,
        }
        for phase in seconds
    ]


def _trained(
    width: int, x: torch.Tensor, y: torch.Tensor, device: str, wait: Callable[[], None]
) -> dict[str, float]:
    """Seconds of each phase, over all steps."""
    net = nfd.ResNet(_D, _C, width, DEPTH, weights="deferred", device=device)
    net.reserve(y.numel())
    optimizer = nfd.SGD(net.param_groups(ETA_C))
    seconds = dict.fromkeys(("forward", "backward", "step"), 0.0)

    def timed(phase: str, work: Callable[[], Any]) -> Any:
        wait()
        start = time.perf_counter()
        result = work()
        wait()
        seconds[phase] += time.perf_counter() - start
        return result

    for inputs, targets in zip(x, y, strict=True):
        optimizer.zero_grad()
        outputs = timed("forward", partial(net, inputs))
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        timed("backward", loss.backward)
        timed("step", optimizer.step)
    return seconds


def _bytes_moved(width: int) -> dict[str, float]:
    """What each phase reads and writes at least, over all steps: rank k BATCH before step k."""
    factors = DEPTH * sum(query_work(width, k * BATCH, BATCH).traffic for k in range(STEPS))
    # Read forward, their gradients written; both read and one written.
    ends = _FLOAT * STEPS * width * (_D + _C)
    return {"forward": factors + ends, "backward": factors + ends, "step": 3 * ends}


def _bandwidth(device: str, wait: Callable[[], None]) -> float:
    """Bytes per second of reading memory."""
    x = torch.ones(100_000_000, device=device)

    def read() -> None:
        x.sum()
        wait()

    return _FLOAT * x.numel() / best(read, 5)


def _waiting(device: str) -> Callable[[], None]:
    """Waits until the device has finished its work."""
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def _held(device: str) -> float:
    """Bytes of this process, or on a device, to be taken from the peak."""
    if not device.startswith("cuda"):
        return 0.0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return float(torch.cuda.memory_allocated())


def _peak(device: str) -> float:
    """Most bytes held so far: on a device by tensors, on the CPU by the process."""
    return float(torch.cuda.max_memory_allocated()) if device.startswith("cuda") else peak_memory()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda")
    parser.add_argument("--width", type=int, default=WIDTH)
    arguments = parser.parse_args()
    terminal(f"a deferred network on {arguments.device}", large(arguments.device, arguments.width))


if __name__ == "__main__":
    main()
