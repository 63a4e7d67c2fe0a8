"""`launch`: a run on a real Ray cluster of several nodes here, parts of which are lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import genkidama
from genkidama.runs.run import Run
from tests.helpers import ROOT, constant, history, small, until
from tests.small_disk import disk_of, fill, possible

VERSION = genkidama.__version__


def searching(**settings: Any) -> genkidama.Experiment:
    space = {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    return constant(
        search={"trials": 4, "phases": 2, "phase_episodes": 20, "space": space, **settings}
    )


# On a cluster.


class Cluster:
    """`tests.ray_cluster` as a process, and what is launched on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_TMPDIR": str(folder),
            "TMPDIR": str(folder),  # what is killed leaves its directory there
            "RAY_AUTH_MODE": "disabled",  # or Ray writes a token into the home directory
            "RAY_USAGE_STATS_ENABLED": "0",
            # Despite its name: everything listens on 127.0.0.1 only.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }
        self._log = (folder / "log").open("wb")
        self.process = self.start(
            "tests.ray_cluster",
            *(json.dumps({"num_cpus": cpus}) for cpus in (0, 1, 1)),
            stdin=subprocess.PIPE,
        )
        answer = self._answer()
        self.address: str = answer["address"]
        #: The nodes' ids, the head's first, also of those that are gone.
        self.nodes: list[str] = answer["nodes"]

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments)],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **{"stderr": self._log, **options},
        )

    def launch(self, *arguments: object) -> subprocess.Popen[str]:
        return self.start(
            "genkidama",
            "launch",
            "--ray",
            "--address",
            self.address,
            *arguments,
            stderr=subprocess.PIPE,
        )

    def add(self, **options: Any) -> int:
        """A node more; its number."""
        self._tell({"add": options})
        return len(self.nodes) - 1

    def remove(self, node: int) -> None:
        """Kills a node's processes, and with them all that Ray has started there."""
        self._tell({"remove": node})

    def of(self, module: str) -> list[psutil.Process]:
        """The processes on the cluster that run a module."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                mine = (
                    process.environ().get("RAY_TMPDIR") == str(self.folder)
                    and process.status() != psutil.STATUS_ZOMBIE
                )
                if mine and module in process.cmdline():
                    found.append(process)
        return found

    def end(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=60)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("RAY_TMPDIR") == str(self.folder):
                    process.kill()
        self._log.close()

    def _tell(self, what: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        self.nodes = self._answer()["nodes"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "log").read_text()
        found: dict[str, Any] = json.loads(line)
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without CPUs and two nodes with one each."""
    pytest.importorskip("ray", reason="needs the extra `ray`")
    with tempfile.TemporaryDirectory(
        prefix="ray-", dir="/tmp"
    ) as folder:  # Ray's sockets have paths of some 100 characters at most
        found = Cluster(Path(folder))
        try:
            yield found
        finally:
            found.end()


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[None]:
    """Afterwards nothing of ours is left on the nodes."""
    yield
    until(
        lambda: not cluster.of("genkidama.parent") and not cluster.of("genkidama.child"),
        "all of ours ended",
    )


#: A launch from Python. Its parent is to be on a certain node rather than on the head, which cannot
#: be lost.
DRIVER = """
import sys
from genkidama import Experiment
from genkidama.plugins.ray import driver, launch
file, address, out, node = sys.argv[1:]
driver.head_of = lambda nodes: node if node in [each["NodeID"] for each in nodes] else None
launch(Experiment.load(file), address=address, children=2, cores=1, out=out, episodes=0, say=print)
"""


def file(folder: Path, experiment: genkidama.Experiment) -> Path:
    path = folder / "experiment.toml"
    path.write_text(experiment.to_toml())
    return path


@pytest.mark.usefixtures("clean")
def test_a_run_on_a_cluster(tmp_path: Path, cluster: Cluster) -> None:
    settings = constant(stop={"updates": 30}, network={"options": {"seconds": 0.1}})
    process = cluster.launch(
        file(tmp_path, settings), "--out", tmp_path / "run", "--episodes", 0, "--json"
    )
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert out.count("\n") == 1 and found["updates"] >= 30 and found["evaluation"] is None
    run = Run.open(tmp_path / "run")
    assert found["run"] == str(run.path) and run.snapshot.updates == found["updates"]
    joined = {event["child"] for event in run.history() if event["event"] == "join"}
    assert joined == {"child-1", "child-2"}
    assert [event["reason"] for event in run.history() if event["event"] == "stop"] == [
        "30 updates done"
    ]
    assert sorted(path.name for path in (run.path / "logs").glob("*.log")) == [
        "child-1.log",
        "child-2.log",
        "parent.log",
    ]
    assert "training CartPole-v1 with a3c: run run" in err and "Traceback" not in err
    told = [
        json.loads(line) for line in (run.path / "logs" / "parent.log").read_text().splitlines()
    ]
    listening = next(line for line in told if line["event"] == "listening")
    assert not Path(listening["out"]).parent.exists()  # nothing stays on the node


def ended(process: subprocess.Popen[str], seconds: float = 100.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def grown(run: Path, event: str, by: int = 1) -> None:
    """Waits for so many more lines of this kind in the history."""
    goal = len(history(run, event)) + by
    until(lambda: len(history(run, event)) >= goal, f"{goal} {event} in {run}", 90.0)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
def test_whoever_is_killed_is_started_again_and_the_run_goes_on(
    tmp_path: Path, cluster: Cluster
) -> None:
    """The parent's process, then its actor, then a child's: Ray's processes take all along."""
    run = tmp_path / "run"
    settings = small(stop={"updates": 100_000}, parent={"checkpoint_seconds": 1.0})
    process = cluster.launch(file(tmp_path, settings), "--out", run, "--episodes", 0)
    grown(run, "checkpoint", 2)

    cluster.of("genkidama.parent")[0].kill()
    grown(run, "resume")
    grown(run, "checkpoint", 2)

    lost = cluster.of("genkidama.parent")[0]
    lost.parent().kill()
    grown(run, "resume")
    until(lambda: lost.pid not in [found.pid for found in cluster.of("genkidama.parent")])
    first, second = history(run, "resume")
    assert second["version"] > first["version"] > 0  # from what the driver had copied
    grown(run, "exchange", 20)
    assert {event["child"] for event in history(run, "exchange")[-20:]} == {
        "child-1",
        "child-2",
    }  # under the new address

    cluster.of("genkidama.child")[0].parent().kill()
    until(
        lambda: {"child-1-2", "child-2-2"} & {event["child"] for event in history(run, "exchange")},
        "a new child",
        90.0,
    )

    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert (
        code == 130
        and err.splitlines()[-1] == f"go on with it: genkidama launch --ray --resume {run}"
    )
    assert (
        "parent was lost with its node or its worker; it is started again (see logs/parent.log)"
        in err
    )
    assert (
        history(run, "stop")[-1]["version"] == Run(run).snapshot.version
    )  # the final checkpoint is here
    assert (
        "ActorDiedError" in (run / "logs" / "parent.log").read_text()
        or "actor died" in (run / "logs" / "parent.log").read_text()
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not possible(), reason="no disk can be mounted here")
@pytest.mark.usefixtures("clean")
def test_a_full_disk_here_is_said_and_ends_no_run(tmp_path: Path, cluster: Cluster) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    settings = constant(parent={"checkpoint_seconds": 0.5}, network={"options": {"seconds": 0.05}})
    with (tmp_path / "said").open("wb") as said:
        launch = ("genkidama", "launch", "--ray", "--address", cluster.address)
        process = cluster.start(
            "tests.small_disk",
            disk,
            *launch,
            *(file(tmp_path, settings), "--out", disk / "run", "--episodes", 0),
            stderr=said,
        )
    there = disk_of(process.pid, disk)
    run = there / "run"
    grown(run, "checkpoint", 2)
    fill(there)
    words = "cannot be written: No space left on device; free space on its disk; it is tried again"
    until(lambda: words in (tmp_path / "said").read_text(), "a warning", 20.0)
    (there / "filler").unlink()
    grown(run, "exchange", 20)
    process.send_signal(signal.SIGTERM)
    until(lambda: history(run, "stop"), "its end", 60.0)
    versions = [line["version"] for line in history(run, "exchange")]
    assert versions == list(range(1, len(versions) + 1))  # nothing is missing, nothing twice
    assert ended(process)[0] == 128 + signal.SIGTERM
    assert "Traceback" not in (tmp_path / "said").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
def test_the_parents_node_is_lost_with_a_child_and_others_take_over(
    tmp_path: Path, cluster: Cluster
) -> None:
    run = tmp_path / "run"
    lost = 1
    settings = constant(
        stop={"updates": 100_000},
        parent={"checkpoint_seconds": 0.5},
        network={"options": {"seconds": 0.05}},
    )
    arguments = [
        sys.executable,
        "-c",
        DRIVER,
        file(tmp_path, settings),
        cluster.address,
        run,
        cluster.nodes[lost],
    ]
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            list(map(str, arguments)), env=cluster.environment, cwd=tmp_path, stdout=out, stderr=out
        )
    try:
        until(
            lambda: (
                {event["child"] for event in history(run, "exchange")} == {"child-1", "child-2"}
            ),
            "two children",
            90.0,
        )
        grown(run, "checkpoint", 2)
        cluster.remove(lost)
        grown(run, "resume")  # it needs no CPU
        resumed = history(run, "resume")[0]["version"]
        grown(run, "exchange", 20)
        assert (
            resumed > 0 and len({event["child"] for event in history(run, "exchange")[-20:]}) == 1
        )  # the other one waits for room
        cluster.add(num_cpus=1)
        until(
            lambda: len({event["child"] for event in history(run, "exchange")[-20:]}) == 2,
            "a child on the new node",
            90.0,
        )
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    said = (tmp_path / "out").read_text()
    assert "parent was lost" in said and re.search("child-[12] was lost", said)
    assert Run(run).snapshot.version == history(run, "stop")[-1]["version"] > resumed


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
def test_only_who_has_the_token_may_join_and_an_interrupted_run_goes_on(
    tmp_path: Path, cluster: Cluster
) -> None:
    run = tmp_path / "run"
    path = file(tmp_path, constant())
    process = cluster.launch(path, "--out", run, "--episodes", 0)
    grown(run, "exchange", 10)
    parent = cluster.of("genkidama.parent")[0]
    command = parent.cmdline()
    tokens = Path(command[command.index("--tokens-file") + 1])
    token = tokens.read_text().split()[1]
    assert tokens.stat().st_mode & 0o777 == 0o600 and len(token) > 40
    shown = [
        " ".join(process.cmdline())
        for process in psutil.process_iter(["cmdline"])
        if process.is_running()
    ]
    assert any("genkidama.child" in line for line in shown) and not any(
        token in line for line in shown
    )
    told = [
        json.loads(line) for line in until((run / "logs" / "parent.log").read_text).splitlines()
    ]
    url = next(
        f"ws://{line['host']}:{line['port']}" for line in told if line["event"] == "listening"
    )
    with pytest.raises(InvalidStatus, match="401"):
        connect(url, proxy=None)
    with connect(url, proxy=None, additional_headers={"Authorization": f"Bearer {token}"}):
        pass

    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert code == 128 + signal.SIGTERM, err
    assert not tokens.exists()
    before = Run(run).snapshot
    assert history(run, "stop")[-1]["version"] == before.version
    goal = int(before.updates) + 20
    code, out, err = ended(
        cluster.launch(
            "--resume",
            run,
            "--episodes",
            0,
            "--json",
            "--allow",
            "*",
            "--set",
            f"stop.updates={goal}",
        )
    )
    assert code == 0, err
    assert goal <= json.loads(out)["updates"] < 2 * goal
    assert history(run, "resume")[0]["version"] == before.version


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            '__version__ = "0.0.1"',
            rf"node 127\.0\.0\.1 has genkidama 0\.0\.1, this program {VERSION}; "
            "install the same version on all nodes",
        ),
        (
            "raise ModuleNotFoundError(\"No module named 'genkidama'\")",
            rf"cannot run genkidama {VERSION} .*; install that version on all nodes",
        ),
    ],
)
def test_a_node_with_other_software_is_named(
    tmp_path: Path, cluster: Cluster, source: str, words: str
) -> None:
    package = tmp_path / "other" / "genkidama"
    shutil.copytree(ROOT / "genkidama", package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "_version.py").open("a") as module:
        module.write(f"\n{source}\n")
    node = cluster.add(num_cpus=3, env_vars={"PYTHONPATH": str(package.parent)})
    try:
        launched = cluster.launch(
            file(tmp_path, constant()), "--out", tmp_path / "run", "--children", 1, "--cores", 3
        )
        code, _, err = ended(launched)
    finally:
        cluster.remove(node)
    assert code == 1
    assert re.fullmatch(f"error: child-1: .*{words}", err.splitlines()[-1]), err


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
def test_a_search_on_a_cluster_survives_the_loss_of_its_parent(
    tmp_path: Path, cluster: Cluster
) -> None:
    pytest.importorskip("optuna", reason="needs the extra `search`")
    run = tmp_path / "run"
    settings = searching(trials=6, phases=3).with_settings({"network.options.seconds": 0.1})
    process = cluster.launch(file(tmp_path, settings), "--out", run)
    grown(run, "report", 5)
    cluster.of("genkidama.parent")[0].parent().kill()
    code, out, err = ended(process, 150.0)
    assert code == 0, err
    assert 1 <= history(run, "resume")[0]["reports"] < 12
    assert len(Run(run).trials) == 6 and all(trial.checkpoints for trial in Run(run).trials)
    with closing(sqlite3.connect(run / "study.db")) as database:
        assert database.execute(
            "select count(*) from trials where state in ('COMPLETE', 'PRUNED')"
        ).fetchone() == (6,)
    assert "best" in out
