"""The first hour of a newcomer, as README and tutorial say, on a Debian with nothing but Python.

`make test-first-hour` runs it. Two systems of Debian bookworm, each in a network namespace, are
made from Debian's packages. Wheels lie where pip looks for them, as if a release were on the index,
and nothing else is within their reach. Beside it, the same path with Stable-Baselines3.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.deploy import fleet
from tests.helpers import ROOT, until
from tests.texts import code_block, code_blocks

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]

#: What the newcomers' systems have beside Debian's smallest set of packages.
PYTHON = ("python3", "python3-venv", "ca-certificates")

HOME = "home/ada"

#: The first lines of whoever installs a Python program on Debian, whose own environment is closed.
ENVIRONMENT = ("python3 -m venv .venv", ". .venv/bin/activate")

PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
INSTALL = re.search(r"`(pip install 'genkidama-rl\[.+?\]')`", PAGE)[1]  # type: ignore[index]
_, TRAIN, SEVERAL = code_blocks("README.md", "bash")
DIAL = {
    "dial.py": code_block("docs/environment.md", "python", "class Dial"),
    "dial.toml": code_block("docs/environment.md", "toml", "dial:Dial"),
}
TRAIN_DIAL = code_block("docs/environment.md", "bash", "dial.toml").strip()

#: Without requests, which huggingface_hub needs no more, the zoo's `enjoy` cannot be imported.
PEERS = ("rl_zoo3==2.9.2", "requests", "moviepy", "gymnasium[box2d]==1.4.0", "torch==2.13.0")

#: Steps of the peer: a part of what it needs, as docs/results/lunarlander.md has it.
PEER_STEPS = 100_000

#: Looks at a page for `FIGURES`, in Chromium.
LOOK = """
import sys
from benchmarks.made_up import DRAWN
from tests.plugins.dashboard.browser import browsing
with browsing() as look, look(sys.argv[1]) as page:
    page.wait_for_selector(DRAWN)
    page.wait_for_function("Number(document.querySelector('#curve').dataset.points) > 20")
    print(page.get_attribute('#curve', 'data-points'))
"""


@dataclass
class System:
    """A Debian in a network namespace, and what was typed there."""

    root: Path
    namespace: str
    address: str
    #: By step: lines typed, and seconds.
    steps: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.root / HOME

    def command(self, line: str) -> list[str]:
        """What types a line in a shell of the user's."""
        mounts = (
            'mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; '
            'mount -t tmpfs tmpfs "$0/dev/shm"; '
            'exec chroot --userspec=1000:1000 "$0" /usr/bin/env -i HOME=/home/ada LANG=C.UTF-8 '
            'PATH=/usr/bin:/bin bash -ec "cd; [ ! -e .venv ] || . .venv/bin/activate; $1"'
        )
        isolated = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec")
        return ["ip", "netns", "exec", self.namespace, *isolated, mounts, str(self.root), line]

    def type(self, step: str, *lines: str) -> str:
        """Types lines, each to its end; gives what they print."""
        began, said = time.monotonic(), ""
        for line in lines:
            done = subprocess.run(
                self.command(line.replace('"', '\\"')), capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            said += done.stdout + done.stderr
        count, seconds = self.steps.get(step, (0, 0.0))
        self.steps[step] = (count + len(lines), seconds + time.monotonic() - began)
        return said

    @contextmanager
    def typing(self, step: str, line: str) -> Iterator[Path]:
        """Types a line that goes on until Ctrl-C; gives the file of what it prints."""
        began = time.monotonic()
        said = self.root.parent / f"{self.namespace}-{len(self.steps)}.txt"
        with said.open("wb") as out:
            process = subprocess.Popen(
                self.command(line.replace('"', '\\"')),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield said
        finally:
            for child in _descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGINT)
            process.wait(30)
        count, seconds = self.steps.get(step, (0, 0.0))
        self.steps[step] = (count + 1, seconds + time.monotonic() - began)

    def megabytes(self, folder: str) -> float:
        done = subprocess.run(["du", "-sm", self.home / folder], capture_output=True, text=True)
        return float(done.stdout.split()[0])


def _descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found = []
    for line in subprocess.run(
        ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        child, parent = map(int, line.split())
        if parent == pid:
            found += [child, *_descendants(child)]
    return found


def table(name: str, steps: Iterable[tuple[str, tuple[int, float]]]) -> list[str]:
    """The lines and minutes of each step, and of all together."""
    rows = list(steps)
    count, seconds = (sum(one[place] for _, one in rows) for place in (0, 1))
    return [f"{name:<26}{'typed lines':>12}{'minutes':>9}"] + [
        f"{step:<26}{lines:>12}{passed / 60:>9.1f}"
        for step, (lines, passed) in [*rows, ("together", (count, seconds))]
    ]


#: Wheels for the systems' Python.
DOWNLOAD = (sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check",
            "--only-binary=:all:", "--python-version", "3.11")  # fmt: skip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, and all that the newcomer's lines need."""
    folder = tmp_path_factory.mktemp("wheels")
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT))
    fleet._call(build)
    (wheel,) = folder.glob("*.whl")
    extras = re.search(r"\[(.+?)\]", INSTALL)[1]  # type: ignore[index]
    asked = (f"{wheel}[{extras},video]", "-c", str(ROOT / "constraints.txt"))
    fleet._call([*DOWNLOAD, "-d", str(folder), *asked])
    return folder


@pytest.fixture(scope="module")
def peers() -> Path:
    """What the same lines need with Stable-Baselines3."""

    def make(folder: Path) -> None:
        done = subprocess.run([*DOWNLOAD, "-d", folder, *PEERS], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the index lacks {PEERS}: {done.stderr[-300:]}")

    return fleet.kept("first-hour-peers", PEERS, make)


@pytest.fixture(scope="module")
def systems(
    tmp_path_factory: pytest.TempPathFactory, wheels: Path
) -> Iterator[tuple[System, System]]:
    """Two systems that reach each other, and nothing else."""
    if reason := fleet.requirements():
        pytest.skip(reason)
    image = fleet.kept(
        "first-hour",
        ("bookworm", PYTHON),
        lambda folder: fleet.bootstrap(
            folder,
            "bookworm",
            "--variant=minbase",
            f"--include={','.join(PYTHON)}",
            sources=fleet._host_sources("bookworm"),
        ),
    )
    folder = tmp_path_factory.mktemp("first-hour")
    names = [f"first-hour-{os.getpid()}-{end}" for end in "ab"]
    made = []
    call = fleet._call
    try:
        for name in names:
            call(["ip", "netns", "add", name])
        ends = ("type", "veth", "peer", "name", "there", "netns", names[1])
        call(["ip", "-n", names[0], "link", "add", "there", *ends])
        for number, name in enumerate(names, 1):
            root, address = folder / name, f"10.78.0.{number}"
            call(["ip", "-n", name, "address", "add", f"{address}/24", "dev", "there"])
            for link in ("lo", "there"):
                call(["ip", "-n", name, "link", "set", link, "up"])
            call(["ip", "-n", name, "route", "add", "default", "via", f"10.78.0.{3 - number}"])
            call(["cp", "-a", "--reflink=auto", str(image), str(root)])
            call(["chroot", str(root), "useradd", "-m", "-u", "1000", "-s", "/bin/bash", "ada"])
            shutil.copytree(wheels, root / "srv/wheels")
            (root / "srv/wheels").chmod(0o755)
            found = "[global]\nno-index = true\nfind-links = /srv/wheels\n"
            (root / "etc/pip.conf").write_text(found)
            made.append(System(root, name, address))
        yield made[0], made[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def test_the_first_hour(systems: tuple[System, System], figures: list[str]) -> None:
    first, second = systems
    first.type("install", *ENVIRONMENT, INSTALL)
    said = first.type("train and evaluate", *TRAIN.strip().splitlines())
    evaluation = json.loads((first.home / "runs/first/evaluation.json").read_text())
    assert evaluation["episodes"] == 100 and evaluation["mean"] > 150.0, said
    suggested = set(re.findall(r"^ +[a-z ]+: +(genkidama .+)$", said, re.MULTILINE))
    again = [line for line in suggested if line.startswith("genkidama evaluate")]
    assert again and any(line.startswith("genkidama serve") for line in suggested), said
    first.type("suggested: evaluate", *again)

    first.type("film", "pip install 'genkidama-rl[video]'",
               "genkidama play runs/first --video landing.mp4")  # fmt: skip
    assert (first.home / "landing.mp4").stat().st_size > 10_000

    with first.typing("page", "genkidama serve runs/first") as said_there:
        address = until(
            lambda: re.search(r"http://\S+", said_there.read_text()), "an address of the page"
        )[0]
        looked = subprocess.run(
            ["ip", "netns", "exec", first.namespace, sys.executable, "-c", LOOK, address],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert looked.returncode == 0, looked.stdout + looked.stderr

    for name, text in DIAL.items():
        (first.home / name).write_text(text)
    first.type("own environment", TRAIN_DIAL)
    lines = (first.home / "runs/dial/history.jsonl").read_text().splitlines()
    (end,) = (line for line in map(json.loads, lines) if line["event"] == "stop")
    assert "mean return" in end["reason"], end

    second.type("second machine", *ENVIRONMENT, INSTALL)
    line = SEVERAL.splitlines()[0]
    with first.typing("second machine", line) as said_there:
        joining = until(
            lambda: re.search(r"genkidama join '\S+'", said_there.read_text()), "a line to type"
        )[0]
        with second.typing("second machine", joining):
            history = first.home / "runs/shelf/history.jsonl"
            until(
                lambda: history.exists() and '"event":"exchange"' in history.read_text(),
                "steps from the second machine",
                180.0,
            )
    joined = re.findall(r'"event":"join".*?"child":"(.*?)"', history.read_text())
    assert joined, history.read_text()[-2000:]

    own = sum(text.count("\n") for text in DIAL.values())
    there = [(f"{step} (there)", one) for step, one in second.steps.items()]
    figures += [
        *table("Genkidama", [*first.steps.items(), *there]),
        f"own environment: {own} lines of file; {first.megabytes('.venv'):.0f} MB installed",
        f"100 episodes: {evaluation['mean']:.1f} ± {evaluation['std']:.1f}",
    ]


#: Of the same environment, its registration and its settings in the zoo.
PEER_DIAL = {
    "dial.py": DIAL["dial.py"]
    + """
import gymnasium
gymnasium.register("Dial-v0", entry_point="dial:Dial")
""",
    "dial.yml": "Dial-v0:\n  n_timesteps: !!float 1e5\n  policy: MlpPolicy\n",
}


def test_the_same_with_stable_baselines3_and_its_zoo(
    systems: tuple[System, System], peers: Path, figures: list[str]
) -> None:
    """As the pages of the zoo have it. There is nothing for a second machine."""
    _, machine = systems
    shutil.copytree(peers, machine.root / "srv/wheels", dirs_exist_ok=True)
    shutil.rmtree(machine.home / ".venv", ignore_errors=True)
    machine.steps.clear()
    run = "--algo ppo --env LunarLander-v3"
    machine.type("install", *ENVIRONMENT, "pip install rl_zoo3 requests 'gymnasium[box2d]'")
    said = machine.type(
        "train and evaluate",
        f"python -m rl_zoo3.train {run} -n {PEER_STEPS}",
        f"python -m rl_zoo3.enjoy {run} -f logs -n 30000 --no-render",
    )
    mean, deviation = re.findall(r"Mean reward: (\S+) \+/- (\S+)", said)[-1]
    episodes = said.count("Episode Reward:")
    machine.type(
        "film", "pip install moviepy", f"python -m rl_zoo3.record_video {run} -f logs -n 1000"
    )
    assert list((machine.home / "logs").rglob("*.mp4"))
    for name, text in PEER_DIAL.items():
        (machine.home / name).write_text(text)
    dial = "--algo ppo --env Dial-v0 --gym-packages dial --conf-file dial.yml"
    machine.type("own environment", f"python -m rl_zoo3.train {dial}")
    own = sum(text.count("\n") for text in PEER_DIAL.values())
    figures += [
        *table("Stable-Baselines3's zoo", machine.steps.items()),
        f"own environment: {own} lines of file; {machine.megabytes('.venv'):.0f} MB installed",
        f"{episodes} episodes after {PEER_STEPS:,} steps: {mean} ± {deviation}",
    ]
