"""Executors: one conformance suite for all of them, then what is lost and what is left when processes are killed."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tasks
from tests.models import Residual
from tests.waiting import FOREVER, INTERRUPTIBLE, PATIENCE, children, wait_for, wait_for_the_end_of

import nfd
from nfd.paper.settings import StudyConfig
from nfd.paper.study import Study
from nfd.runs.executors import Executor, Outcome, executor_named
from nfd.runs.executors.messages import packed, unpacked
from nfd.runs.executors.processes import Processes

ROOT = Path(__file__).parents[1]
SOURCES = os.pathsep.join([str(ROOT), str(ROOT / "src")])
HAS_RAY = importlib.util.find_spec("ray") is not None
RAY_MARKS = [pytest.mark.skipif(not HAS_RAY, reason="needs pip install 'nfd[ray]'")]
EXECUTORS = ["inline", "processes", pytest.param("ray", marks=RAY_MARKS)]
REMOTE = EXECUTORS[1:]


def held(log: Path) -> list[int]:
    """The processes that have started a task and not ended it."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    ended = {(name, pid) for event, name, pid in lines if event == "end"}
    return [int(pid) for event, name, pid in lines if event == "start" and (name, pid) not in ended]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes with one core each, to which this process is connected."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", SOURCES)  # the workers import tests.tasks
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def made(name: str, request: pytest.FixtureRequest, **options: Any) -> Executor:
    if name == "processes":
        options = {"workers": 1, **options}
    if name == "ray":
        options["address"] = request.getfixturevalue("cluster").address
    return executor_named(name, **options)


@dataclass
class Sweep:
    """What a run of quick tasks gave that was closed while slow ones ran."""

    outcomes: list[Outcome[Any]]
    started: list[int]
    threads_after: int
    children: int
    log: Path


QUICK = [("square", 2.0), ("fail", "one"), ("threads", 0), ("leave", 7), ("square", 5.0), ("square", 6.0)]


@pytest.fixture(scope="module", params=EXECUTORS)
def sweep(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    executor = made(request.param, request)
    log = tmp_path_factory.mktemp("sweep") / "log"
    slow = [("logged", (str(log), index, FOREVER)) for index in range(10)]
    started: list[int] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    run = executor.run(tasks.named, QUICK + slow, started.append)
    outcomes = [next(run) for _ in QUICK]
    if request.param != "inline":
        wait_for(log.exists)
    run.close()
    after = torch.get_num_threads()
    torch.set_num_threads(threads)
    return Sweep(outcomes, started, after, len(multiprocessing.active_children()), log)


class TestConformance:
    """What every executor does."""

    def test_every_task_has_one_outcome(self, sweep: Sweep) -> None:
        assert sorted(outcome.index for outcome in sweep.outcomes) == list(range(len(QUICK)))

    def test_values(self, sweep: Sweep) -> None:
        assert {o.index: o.value for o in sweep.outcomes if o.error is None} == {0: 4.0, 2: 1, 4: 25.0, 5: 36.0}

    def test_errors_are_outcomes_with_type_and_text(self, sweep: Sweep) -> None:
        assert {o.index: o.error for o in sweep.outcomes if o.error} == {1: "ValueError: one", 3: "SystemExit: 7"}

    def test_threads_of_the_driver_are_restored(self, sweep: Sweep) -> None:
        assert sweep.threads_after == 2  # inside the task it was 1, see the values

    def test_started_is_told_once_and_in_order(self, sweep: Sweep) -> None:
        assert sweep.started == list(range(len(sweep.started)))
        assert len(QUICK) <= len(sweep.started) <= len(QUICK) + 4  # not flooded: at most twice the slots ahead

    def test_a_closed_run_leaves_nothing_at_work(self, sweep: Sweep) -> None:
        assert sweep.children == 0
        wait_for_the_end_of(set(held(sweep.log)) - {os.getpid()})

    @pytest.mark.parametrize("name", EXECUTORS)
    def test_no_tasks(self, name: str, request: pytest.FixtureRequest) -> None:
        assert list(made(name, request).run(tasks.square, [])) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("name", EXECUTORS)
    def test_many_tasks_with_two_threads(self, name: str, request: pytest.FixtureRequest) -> None:
        if name != "ray":  # the nodes of the cluster have one core
            outcomes = list(made(name, request, threads=2).run(tasks.named, [("threads", 0), ("pools", 0)]))
            assert outcomes[0] == Outcome(0, 2)
            assert name == "inline" or outcomes[1].value == ["2", "2", "2"]
        outcomes = list(made(name, request).run(tasks.square, range(300)))
        assert sorted((o.index, o.value) for o in outcomes) == [(i, i * i) for i in range(300)]
        assert not multiprocessing.active_children()

    @pytest.mark.slow
    @pytest.mark.parametrize("name", EXECUTORS)
    def test_large_results(self, name: str, request: pytest.FixtureRequest) -> None:
        (outcome,) = made(name, request).run(tasks.large, [200_000_000])
        assert outcome.value is not None
        assert len(outcome.value) == 200_000_000


@pytest.mark.parametrize("name", [REMOTE[0], pytest.param("ray", marks=[*RAY_MARKS, pytest.mark.slow])])
class TestLostWorkers:
    """What executors with workers do when those are killed, or cannot send."""

    def test_a_task_is_tried_again_and_what_cannot_be_sent_is_an_error(
        self, name: str, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        mixed = [
            ("killed_once", str(tmp_path / "mark")),
            ("unsendable", 0),
            ("square", threading.Lock()),
            ("square", 3),
        ]
        outcomes = sorted(made(name, request).run(tasks.named, mixed), key=lambda outcome: outcome.index)
        assert outcomes[0] == Outcome(0, "alive")
        assert outcomes[3] == Outcome(3, 9)
        assert "result, of type lock, cannot be sent back" in str(outcomes[1].error)
        assert "this task cannot be sent to a worker" in str(outcomes[2].error)

    def test_functions_need_no_module(self, name: str, request: pytest.FixtureRequest) -> None:
        power = 3

        @dataclass
        class Local:
            value: int

        outcomes = made(name, request).run(lambda task: Local(task.value**power), [Local(2)])
        assert [outcome.value for outcome in outcomes] == [Local(8)]

    @pytest.mark.slow
    def test_a_task_that_kills_its_workers_is_given_up(self, name: str, request: pytest.FixtureRequest) -> None:
        poisoned = [("square", 1), ("killed", 0), ("quit_at_once", 0), *[("square", 2)] * 5]
        outcomes = sorted(made(name, request, attempts=2).run(tasks.named, poisoned), key=lambda o: o.index)
        assert [o.value for o in outcomes] == [1, None, None, 4, 4, 4, 4, 4]
        assert all("WorkerLost: the worker of this task was lost 2 times" in str(o.error) for o in outcomes[1:3])

    @pytest.mark.slow
    def test_kills_at_work_lose_and_repeat_nothing(
        self, name: str, request: pytest.FixtureRequest, tmp_path: Path
    ) -> None:
        log, over, dice = tmp_path / "log", tmp_path / "over", random.Random(0)
        hunted: list[int] = []

        def hunt() -> None:
            """Kill twelve workers in the middle of a task; only then may a task end."""
            while len(hunted) < 12:
                wait_for(lambda: set(held(log)) - set(hunted))
                hunted.append(dice.choice(sorted(set(held(log)) - set(hunted))))
                os.kill(hunted[-1], signal.SIGKILL)
            over.touch()

        hunter = threading.Thread(target=hunt)
        hunter.start()
        executor = made(name, request, attempts=100, **({"workers": 2} if name == "processes" else {}))
        outcomes = list(executor.run(tasks.logged_until, [(str(log), index, str(over)) for index in range(20)]))
        hunter.join()
        assert len(hunted) == 12
        assert sorted((o.index, o.value, o.error) for o in outcomes) == [(i, i, None) for i in range(20)]
        assert not multiprocessing.active_children()


DRIVER = """
import sys
from nfd.runs.executors import executor_named
from tests import tasks

if __name__ == "__main__":
    log, workers = sys.argv[1], int(sys.argv[2])
    for outcome in executor_named("processes", workers=workers).run(tasks.logged, [(log, i, 1e5) for i in range(9)]):
        print(outcome)
"""


def script(tmp_path: Path, text: str, *arguments: object) -> subprocess.Popen[str]:
    path = tmp_path / "driver.py"
    path.write_text(text)
    return subprocess.Popen(
        [*INTERRUPTIBLE, sys.executable, str(path), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # SIGINT goes to the driver and its workers, as from a terminal
    )


class TestDriver:
    """Workers and the process that started them."""

    @pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_workers_end_with_their_driver(self, tmp_path: Path, workers: int) -> None:
        logs = {signal.SIGINT: tmp_path / "int", signal.SIGKILL: tmp_path / "kill"}
        drivers = {number: script(tmp_path, DRIVER, log, workers) for number, log in logs.items()}
        for number, driver in drivers.items():
            wait_for(lambda number=number: len(held(logs[number])) == workers)  # type: ignore[misc]
            os.killpg(driver.pid, number) if number == signal.SIGINT else driver.kill()
            _, errors = driver.communicate(timeout=PATIENCE)
            wait_for_the_end_of(held(logs[number]))
            assert errors.count("Traceback") == (number == signal.SIGINT)  # of the driver alone
        assert drivers[signal.SIGINT].returncode != 0

    @pytest.mark.slow
    @pytest.mark.parametrize("after", [0.1, 0.4, 0.8, 1.5, 2.5])
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_workers_end_with_their_driver_also_while_they_start(
        self, tmp_path: Path, after: float, number: int
    ) -> None:
        driver = script(tmp_path, DRIVER, tmp_path / "log", 2)
        wait_for(lambda: len(children(driver.pid)) == 3)  # with Python's own resource tracker
        workers = children(driver.pid)
        time.sleep(after)
        driver.send_signal(number)
        driver.communicate(timeout=PATIENCE)
        wait_for_the_end_of(workers)

    @pytest.mark.slow
    def test_a_script_without_guard_is_safe(self, tmp_path: Path) -> None:
        text = DRIVER.replace('if __name__ == "__main__":', "if True:").replace("tasks.logged", "tasks.named")
        driver = script(tmp_path, text.replace("(log, i, 1e5)", '("square", i)'), "unused", 1)
        output, errors = driver.communicate(timeout=PATIENCE)
        assert output.count("Outcome(") == 9, errors

    @pytest.mark.slow
    def test_work_in_a_script(self, tmp_path: Path) -> None:
        text = DRIVER.replace("tasks.logged", "local").replace("import tasks\n", "import tasks\ndef local(x): return 1")
        output, errors = script(tmp_path, text, "unused", 1).communicate(timeout=PATIENCE)
        assert output.count("value=1") == 9, errors
        text = text.replace('if __name__ == "__main__":', "if True:")  # workers do not run the script again
        output, errors = script(tmp_path, text, "unused", 2).communicate(timeout=PATIENCE)
        assert output.count("value=1") == 9, errors

    @pytest.mark.slow
    def test_work_in_a_notebook(self, tmp_path: Path) -> None:
        """Its cells are no file that a worker could import."""
        nbformat, nbclient = pytest.importorskip("nbformat.v4"), pytest.importorskip("nbclient")
        pytest.importorskip("ipykernel")
        cells = [
            "from nfd.runs.executors import executor_named\nscale = 10",
            "def scaled(x):\n    return scale * x",
            "print([o.value for o in executor_named('processes', workers=1).run(scaled, [1, 2])])",
        ]
        notebook = nbformat.new_notebook(cells=[nbformat.new_code_cell(cell) for cell in cells])
        nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
        assert notebook.cells[-1].outputs[0].text == "[10, 20]\n"


class TestProcesses:
    """Facts about worker processes."""

    def test_workers_by_default_fill_the_cores(self) -> None:
        cores = len(os.sched_getaffinity(0))
        assert [Processes(threads=threads).slots for threads in (1, cores, 10 * cores)] == [cores, 1, 1]

    def test_a_function_that_cannot_be_sent_is_refused(self) -> None:
        lock = threading.Lock()
        with pytest.raises(
            TypeError, match=r"function must be one that cloudpickle can send.*lock.*or use the executor"
        ):
            list(Processes(1).run(lambda x: lock, [1]))

    def test_a_death_in_the_middle_of_a_result_is_seen_and_costs_one_attempt(self, tmp_path: Path) -> None:
        outcomes = list(Processes(1, attempts=2).run(tasks.killed_while_answering, [str(tmp_path / "mark")]))
        assert outcomes == [Outcome(0, b"whole")]

    def test_a_death_costs_the_tasks_of_other_workers_nothing(self, tmp_path: Path) -> None:
        log, over = tmp_path / "log", tmp_path / "over"
        mixed = [("logged_until", (str(log), 7, str(over))), ("killed_once", str(tmp_path / "mark")), ("touch", over)]
        outcomes = sorted(Processes(2).run(tasks.named, mixed), key=lambda outcome: outcome.index)
        assert [outcome.value for outcome in outcomes[:2]] == [7, "alive"]
        assert log.read_text().count("start") == 1

    def test_workers_wait_for_the_next_run_inside_of_a_with_statement(self) -> None:
        def ids(executor: Processes, function: Callable[[int], int]) -> set[int | None]:
            return {outcome.value for outcome in executor.run(function, [0])}

        with Processes(1) as executor:
            first = ids(executor, tasks.process)
            with executor:  # a sweep inside of another
                assert ids(executor, tasks.process) == first
            assert ids(executor, tasks.process) == first
            (worker,) = multiprocessing.active_children()
            worker.kill()
            worker.join()
            second = ids(executor, tasks.process)
            assert not first & second  # a worker that died while it waited costs nothing
            assert not second & ids(executor, tasks.other_process)  # a worker has one function
            assert len(multiprocessing.active_children()) == 1
        assert not multiprocessing.active_children()
        assert not first & ids(executor, tasks.process)
        assert not multiprocessing.active_children()

    def test_prepared_workers_load_a_module_before_their_first_task(self) -> None:
        with Processes(1) as executor:
            executor.prepare("colorsys")
            (worker,) = multiprocessing.active_children()
            (outcome,) = executor.run(lambda name: (os.getpid(), name in sys.modules), ["colorsys"])
            assert outcome.value == (worker.pid, True)
            executor.prepare("colorsys")
            assert multiprocessing.active_children() == [worker]
        assert not multiprocessing.active_children()

    @pytest.mark.slow
    def test_a_function_that_workers_cannot_load_stops_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = type(sys)("only_here")
        exec("def work(x): return x", module.__dict__)
        monkeypatch.setitem(sys.modules, "only_here", module)
        with pytest.raises(RuntimeError, match=r"could not load the function: ModuleNotFoundError: .*only_here"):
            list(Processes(2).run(module.work, [1, 2, 3]))
        assert not multiprocessing.active_children()

    @pytest.mark.slow
    def test_workers_that_are_always_killed_at_the_start_stop_the_run(self, tmp_path: Path) -> None:
        path = tmp_path / "dying_on_import.py"
        path.write_text("import os\nif 'driver' not in os.environ: os.kill(os.getpid(), 9)\ndef work(x): return x")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(tmp_path)
            patch.setenv("driver", "1")
            work = importlib.import_module("dying_on_import").work
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(tmp_path)
            with pytest.raises(RuntimeError, match=r"before it was ready: it was ended by signal 9 .* fewer workers"):
                list(Processes(1).run(work, [1]))

    @pytest.mark.slow
    def test_a_death_is_seen_though_a_child_of_the_task_keeps_the_pipe_open(self, tmp_path: Path) -> None:
        mark = tmp_path / "orphan"
        (outcome,) = Processes(1, attempts=1).run(tasks.orphan, [str(mark)])
        assert "it exited with 1" in str(outcome.error)
        os.kill(int(mark.read_text()), signal.SIGKILL)  # it lives, with the pipe in its hands

    @pytest.mark.slow
    def test_processes_of_a_task_have_their_signals(self) -> None:
        assert list(Processes(1).run(tasks.blocked_signals, [0])) == [Outcome(0, "[]")]

    @pytest.mark.slow
    def test_an_error_of_the_consumer_stops_the_workers(self, tmp_path: Path) -> None:
        run = Processes(2).run(tasks.named, [("square", 1), *[("logged", (str(tmp_path / "log"), 1, FOREVER))] * 3])
        next(run)
        with pytest.raises(OSError, match="disk full"):
            run.throw(OSError("disk full"))
        assert not multiprocessing.active_children()


class TestNames:
    """The factory."""

    def test_unknown_name(self) -> None:
        with pytest.raises(ValueError, match=r"executor must be one of .* Did you mean 'processes'"):
            executor_named("process")

    @pytest.mark.parametrize(
        ("name", "options"), [("inline", {"workers": 2}), ("ray", {"workers": 2}), ("processes", {"address": "auto"})]
    )
    def test_options_of_another_executor(self, name: str, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=f"is an option of the executor .* for '{name}'"):
            executor_named(name, **options)

    def test_ray_is_optional(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(ImportError, match=r"pip install 'nfd\[ray\]'"):
            executor_named("ray")


def answers(executor: Executor) -> list[Any]:
    """All outputs of a small study, and all losses of a small transfer."""
    tiny: Any = {"depths": (2, 4), "limit_width": 32, "replicates": 3, "widths": (8, 9), "seeds": 2, "steps": 2}
    with nfd.Sweep(None, executor) as sweep:
        measured = Study(StudyConfig(**tiny, batch=2, block_depths=(2, 4), block_width=8, block_seeds=2)).measure(sweep)
    stream = torch.Generator().manual_seed(0)
    batches = [(torch.randn(4, 5, generator=stream), torch.randint(0, 3, (4,), generator=stream))] * 2
    options: Any = {"rules": ("complete-p",), "lr": (0.001, 0.02, 0.4), "seeds": 2, "executor": executor}
    (transfer,) = nfd.transfer(Residual, (8, 16), (2,), batches, **options)
    outputs = [*measured.limits.values(), *measured.narrow.values(), *measured.real.values()]
    tensors = [*outputs, *(cell.losses for cell in transfer.cells.values())]
    return [*(tensor.tolist() for tensor in tensors), measured.blocks]


@pytest.mark.skipif(not HAS_RAY, reason="needs pip install 'nfd[ray]'")
class TestRay:
    """Facts about clusters. The last test takes a node away."""

    def test_tasks_land_on_both_nodes(self, cluster: Any, tmp_path: Path) -> None:
        executor = executor_named("ray", address=cluster.address)
        assert executor.slots == 2
        outcomes = list(executor.run(tasks.met, [(str(tmp_path), index, 2) for index in range(2)]))
        assert len({outcome.value for outcome in outcomes}) == 2

    def test_no_room(self, cluster: Any) -> None:
        with pytest.raises(RuntimeError, match="No node of Ray has room for a task with threads=2 and gpus=0;"):
            list(executor_named("ray", address=cluster.address, threads=2).run(tasks.square, [1]))

    def test_another_cluster_than_the_connected(self, cluster: Any) -> None:
        with pytest.raises(RuntimeError, match=f"connected to the Ray at {cluster.address}"):
            list(executor_named("ray", address="192.0.2.9:6379").run(tasks.square, [1]))

    def test_questions_are_answered_there_as_they_are_here(self, cluster: Any) -> None:
        """Networks of a study, and trials of anyone's model."""
        there, here = answers(executor_named("ray", address=cluster.address)), answers(executor_named("inline"))
        assert there == here

    @pytest.mark.slow
    def test_a_node_that_goes_takes_nothing_with_it(self, cluster: Any, tmp_path: Path) -> None:
        node = cluster.add_node(num_cpus=2)
        executor = executor_named("ray", address=cluster.address)
        wait_for(lambda: executor.slots == 4)
        together, log, over = tmp_path / "together", tmp_path / "log", tmp_path / "over"
        together.mkdir()
        met = [("met", (str(together), index, 4)) for index in range(4)]
        run = executor.run(
            tasks.named, [*met, *[("logged_until", (str(log), index, str(over))) for index in range(40)]]
        )
        outcomes = [next(run) for _ in met]
        assert len({outcome.value for outcome in outcomes}) == 3
        rest = [threading.Thread(target=lambda: outcomes.extend(run))]
        rest[0].start()
        wait_for(lambda: len(held(log)) == 4)  # every core of every node is at work
        cluster.remove_node(node, allow_graceful=False)
        over.touch()
        rest[0].join()
        assert sorted(o.index for o in outcomes) == list(range(44))
        assert not [o for o in outcomes if o.error]

    @pytest.mark.slow
    def test_it_starts_a_ray_and_ends_it(self, tmp_path: Path) -> None:
        text = """
import ray
from nfd.runs.executors import executor_named
from tests import tasks
executor = executor_named("ray")
print(executor.slots > 0, ray.is_initialized(), list(executor.run(tasks.square, [3])), ray.is_initialized())
"""
        output, errors = script(tmp_path, text).communicate(timeout=PATIENCE)
        assert output.split(maxsplit=2)[:2] == ["True", "True"], errors
        assert output.endswith("[Outcome(index=0, value=9, error=None)] False\n")
        assert "Traceback" not in errors


def test_a_tensor_travels_without_the_rest_of_its_storage() -> None:
    rows = torch.arange(4096.0).view(1024, 4)
    message = packed({"rows": [rows[k] for k in range(3)]})
    assert len(message) < rows.untyped_storage().nbytes() / 4
    assert torch.equal(torch.stack(unpacked(message)["rows"]), rows[:3])
    assert torch.equal(unpacked(packed(rows)), rows)
