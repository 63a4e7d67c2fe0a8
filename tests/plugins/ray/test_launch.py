"""`launch`: a run on a real Ray cluster of several nodes here, parts of which are lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import genkidama
from genkidama.runs.run import Run
from tests.helpers import ROOT, constant, history, until

VERSION = genkidama.__version__


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
            *(json.dumps({"num_cpus": cpus}) for cpus in (1, 1)),
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
    """Two nodes with a CPU each, the first of them the head."""
    if find_spec("ray") is None:
        pytest.skip("needs the extra `ray`")
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


def file(folder: Path, experiment: genkidama.Experiment) -> Path:
    path = folder / "experiment.toml"
    path.write_text(experiment.to_toml())
    return path


def ended(process: subprocess.Popen[str], seconds: float = 100.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def grown(run: Path, event: str, by: int = 1) -> None:
    """Waits for so many more lines of this kind in the history."""
    goal = len(history(run, event)) + by
    until(lambda: len(history(run, event)) >= goal, f"{goal} {event} in {run}", 90.0)


@pytest.mark.usefixtures("clean")
def test_a_run_on_a_cluster(tmp_path: Path, cluster: Cluster) -> None:
    """Its result and its files, and the token, which alone lets a child in."""
    run = tmp_path / "run"
    settings = constant(stop={"updates": 30}, network={"options": {"seconds": 0.1}})
    process = cluster.launch(file(tmp_path, settings), "--out", run, "--episodes", 0, "--json")
    grown(run, "exchange")
    command = cluster.of("genkidama.parent")[0].cmdline()
    tokens = Path(command[command.index("--tokens-file") + 1])
    token = tokens.read_text().split()[1]
    assert tokens.stat().st_mode & 0o777 == 0o600 and len(token) > 40
    processes = psutil.process_iter(["cmdline"])
    shown = [" ".join(each.info["cmdline"] or ()) for each in processes]
    assert any("genkidama.child" in line for line in shown)
    assert not any(token in line for line in shown)
    log = [json.loads(line) for line in (run / "logs" / "parent.log").read_text().splitlines()]
    listening = next(line for line in log if line["event"] == "listening")
    url = f"ws://{listening['host']}:{listening['port']}"
    with pytest.raises(InvalidStatus, match="401"):
        connect(url, proxy=None)
    with connect(url, proxy=None, additional_headers={"Authorization": f"Bearer {token}"}):
        pass

    code, out, err = ended(process)
    assert code == 0, err
    found = json.loads(out)
    assert out.count("\n") == 1 and found["updates"] >= 30 and found["evaluation"] is None
    assert found["run"] == str(run) and Run.open(run).snapshot.updates == found["updates"]
    assert {event["child"] for event in history(run, "join")} == {"child-1", "child-2"}
    assert [event["reason"] for event in history(run, "stop")] == ["30 exchanges a child done"]
    logs = sorted(path.name for path in (run / "logs").glob("*.log"))
    assert logs == ["child-1.log", "child-2.log", "parent.log"]
    assert "training CartPole-v1 with a3c: run run" in err and "Traceback" not in err
    assert not tokens.exists()
    assert not list(cluster.folder.glob("genkidama-*"))  # nothing stays on a node


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
def test_whatever_is_lost_is_started_again_and_an_interrupted_run_goes_on(
    tmp_path: Path, cluster: Cluster
) -> None:
    """A child's process, its actor, and then its node; Ctrl-C; and the run is resumed."""
    run = tmp_path / "run"
    node = cluster.add(num_cpus=1)
    settings = constant(stop={"updates": 100_000}, network={"options": {"seconds": 0.05}})
    process = cluster.launch(file(tmp_path, settings), "--out", run, "--episodes", 0)
    everyone = {"child-1", "child-2", "child-3"}

    def training(names: set[str]) -> None:
        until(
            lambda: {event["child"] for event in history(run, "exchange")[-20:]} == names,
            f"{names} train",
            90.0,
        )

    training(everyone)
    lost = cluster.of("genkidama.child")[0]
    lost.kill()
    until(lambda: lost.pid not in [each.pid for each in cluster.of("genkidama.child")])
    training(everyone)

    cluster.of("genkidama.child")[0].parent().kill()
    until(
        lambda: any(re.fullmatch("child-.-2", each["child"]) for each in history(run, "join")),
        "a child in a new actor",
        90.0,
    )

    cluster.remove(node)
    until(
        lambda: len({event["child"] for event in history(run, "exchange")[-20:]}) == 2,
        "the third waits for room",
        90.0,
    )
    cluster.add(num_cpus=1)
    until(
        lambda: len({event["child"] for event in history(run, "exchange")[-20:]}) == 3,
        "a child on the new node",
        90.0,
    )

    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert f"\n  go on:      genkidama launch --ray --resume {run}" in err
    assert re.search("child-[123] was killed, and is started again", err)
    before = Run(run).snapshot
    assert history(run, "stop")[-1]["version"] == before.version  # the final checkpoint
    assert re.search("[Aa]ctor ?[Dd]ied", "".join(p.read_text() for p in run.glob("logs/*.log")))

    goal = int(before.updates) + 20
    resume = ("--resume", run, "--episodes", 0, "--json", "--allow", "*")
    code, out, err = ended(cluster.launch(*resume, "--set", f"stop.updates={goal}"))
    assert code == 0, err
    assert goal <= json.loads(out)["updates"] < 2 * goal
    assert history(run, "resume")[0]["version"] == before.version


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
def test_a_node_with_other_software_is_named(tmp_path: Path, cluster: Cluster) -> None:
    package = tmp_path / "other" / "genkidama"
    shutil.copytree(ROOT / "genkidama", package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "_version.py").open("a") as module:
        module.write("\nraise ModuleNotFoundError(\"No module named 'genkidama'\")\n")
    node = cluster.add(num_cpus=3, env_vars={"PYTHONPATH": str(package.parent)})
    try:
        launched = cluster.launch(
            file(tmp_path, constant()), "--out", tmp_path / "run", "--children", 1, "--cores", 3
        )
        code, _, err = ended(launched)
    finally:
        cluster.remove(node)
    assert code == 1
    words = rf"cannot run genkidama {VERSION} .*; install that version on all nodes"
    assert re.fullmatch(f"error: child-1: .*{words}", err.splitlines()[-1]), err


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
def test_a_search_on_a_cluster(tmp_path: Path, cluster: Cluster) -> None:
    pytest.importorskip("optuna", reason="needs the extra `search`")
    run = tmp_path / "run"
    space = {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    plan = {"trials": 4, "phases": 2, "phase_episodes": 20, "space": space}
    code, out, err = ended(cluster.launch(file(tmp_path, constant(search=plan)), "--out", run))
    assert code == 0, err
    assert len(Run(run).trials) == 4 and all(trial.checkpoints for trial in Run(run).trials)
    assert "Trials      4 of 4 started" in out
