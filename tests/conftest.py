"""Shared settings of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nfd.core.machine import threads

_THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
torch.set_num_threads(_THREADS)

_PLACES = (Path(__file__).parents[2] / "shared" / "data", Path(os.environ.get("NFD_DATA", "/nowhere")))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded images go to a folder of the test run, not to the user's."""
    monkeypatch.setenv("NFD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Hundreds of products of small matrices wait for a second thread longer than they take."""
    with threads(1):
        yield


@pytest.fixture
def cifar_files() -> Path:
    """Real CIFAR-10 pixels in the binary layout, where somebody has put them."""
    for place in _PLACES:
        if (place / "cifar-10-batches-bin").is_dir():
            return place
    pytest.skip("needs cifar-10-batches-bin in ../shared/data or in the folder that NFD_DATA names")


@pytest.fixture(scope="session")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every figure of the paper at its smallest, made by the command: pages, panels, result.json and the runs."""
    from nfd.cli.main import main

    directory = tmp_path_factory.mktemp("figures")
    assert main(["figure", "all", "--size", "smoke", "--out", str(directory), "--executor", "inline"]) == 0
    return directory
