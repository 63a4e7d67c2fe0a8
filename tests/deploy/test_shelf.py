"""A shelf, as a user has one: Debian systems with systemd, ssh, and `ansible-playbook`.

The tests of one release are one story: each begins where the one before it ended, so that the first
failure says most. The systems have what a Raspberry Pi has from its card, and no way to the
internet.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from genkidama.config.experiment import Experiment
from genkidama.runs.evaluation import evaluate
from genkidama.runs.run import Run
from tests.deploy.fleet import CACHE, Fleet, base_image, requirements
from tests.helpers import ROOT, history, until

ADDRESSES = {"pi0": "10.77.0.10", "pi1": "10.77.0.11", "pi2": "10.77.0.12"}
CHILDREN = ("pi1", "pi2")

PYTHON = {"bookworm": "3.11", "trixie": "3.13"}

ONE_CORE = "[parent]\npi0\n\n[children]\npi1 genkidama_cores=1\npi2 genkidama_cores=1\n"

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(requirements() is not None, reason=str(requirements())),
]


class Shelf:
    """A fleet, and what its user has: a checkout, an inventory, the tools of Ansible."""

    def __init__(self, fleet: Fleet, release: str, folder: Path) -> None:
        self.fleet, self.release, self.folder = fleet, release, folder
        self.began = 0.0
        self.checkout = self.copy_checkout("checkout")
        self.write_inventory("genkidama_parent_address=pi0.local\n")

    def copy_checkout(self, name: str) -> Path:
        """What a user has cloned."""
        checkout = self.folder / name
        for part in ("genkidama", "examples", "parent", "child", "deploy"):
            shutil.copytree(
                ROOT / part,
                checkout / part,
                ignore=shutil.ignore_patterns(
                    "__pycache__", "wheelhouse", "secrets.yml", "inventory.ini"
                ),
            )
        for part in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
            shutil.copy(ROOT / part, checkout / part)
        settings = checkout / "parent/parent.toml"
        settings.write_text(
            re.sub(
                r"(?m)^mean_return = .*$",
                "# no end but by hand",
                re.sub(r"(?m)^seconds = .*$", "seconds = 86400.0", settings.read_text()),
            )
        )
        return checkout

    def write_inventory(
        self,
        variables: str,
        text: str = "[parent]\npi0\n\n[children]\npi1 genkidama_cores=4\npi2\n",
    ) -> None:
        (self.folder / "shelf.ini").write_text(
            f"{text}\n[all:vars]\nansible_user=pi\n"
            f"genkidama_wheelhouse={CACHE}/wheelhouse\ngenkidama_fetched={self.folder}/home\n"
            "genkidama_experiment={{ playbook_dir }}/../../parent/parent.toml\n"
            f"{variables}"
        )

    def play(
        self, playbook: str, *options: str, check: bool = True, checkout: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "ansible-playbook"), playbook]
        inventories = ["-i", str(self.folder / "shelf.ini"), "-i", str(self.fleet.inventory)]
        return self.fleet.run(
            [*command, *inventories, *options],
            cwd=(checkout or self.checkout) / "deploy/ansible",
            check=check,
            seconds=1100,
            XDG_CONFIG_HOME=str(self.folder / "config"),
            ANSIBLE_FORCE_COLOR="0",
            # A fleet's own: a machine of the same name in another fleet may still have its
            # connection.
            ANSIBLE_SSH_CONTROL_PATH_DIR=str(self.folder / "ssh"),
            PATH=f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )

    def wheels(self, role: str) -> Path:
        """Where the wheels of a role lie on the controller."""
        return CACHE / f"wheelhouse/{role}-x86_64-py{PYTHON[self.release].replace('.', '')}"

    @property
    def run(self) -> Path:
        return self.fleet.root("pi0") / "var/lib/genkidama/runs/shelf"

    def exchanges(self, child: str, after: float = 0.0) -> list[dict[str, Any]]:
        return [
            event
            for event in history(self.run, "exchange")
            if event["child"] == child and event["time"] > after
        ]

    def exchanging(self, *children: str, seconds: float = 120) -> None:
        """Waits until each of these has exchanged weights from now on."""
        now = time.time()
        for child in children:
            until(
                lambda child=child: self.exchanges(child, now), f"an exchange of {child}", seconds
            )  # type: ignore[misc]

    def state(self, system: str, unit: str, *properties: str) -> str:
        return self.fleet.ssh(
            system, f"systemctl show {unit} --value --property={','.join(properties)}"
        ).strip()

    def traces(self, system: str) -> list[str]:
        """Files and users of ours on a system; logs apart."""
        found = self.fleet.ssh(
            system,
            "sudo find / -xdev -iname '*genkidama*' -not -path '/proc/*' -not -path '/var/log/*'; "
            "getent passwd genkidama || true",
        )
        return found.split()


def recap(output: str) -> dict[str, dict[str, int]]:
    """Ansible's last lines: what each host has counted."""
    lines = re.findall(r"(?m)^(\S+)\s+: (ok=.*)$", output)
    return {
        host: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", counts)}
        for host, counts in lines
    }


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def shelf(request: pytest.FixtureRequest) -> Iterator[Shelf]:
    release = request.param
    folder = Path(f"/var/tmp/genkidama-shelf-{release}")
    shutil.rmtree(folder, ignore_errors=True)
    with Fleet(folder / "systems", base_image(release), ADDRESSES) as fleet:
        shelf = Shelf(fleet, release, folder)
        # A real controller has the internet; this one has none, so its wheels are made before.
        for role in ("parent", "child"):
            command = [
                sys.executable,
                "deploy/wheelhouse.py",
                "--out",
                f"{CACHE}/wheelhouse",
                "--role",
                role,
            ]
            subprocess.run(
                [*command, "--platform", "x86_64", "--python", PYTHON[release]],
                cwd=shelf.checkout,
                check=True,
            )
        yield shelf
    shutil.rmtree(folder, ignore_errors=True)


WRONG = {
    "no parent": ("[children]\npi1\n", "", "no machine in the group [parent]"),
    "two parents": ("[parent]\npi0\npi2\n\n[children]\npi1\n", "", "2 machines (pi0, pi2)"),
    "no children": ("[parent]\npi0\n", "", "no machine in the group [children]"),
    "the same name twice": (
        "[parent]\npi0\n\n[children]\npi1\npi2\n",
        "genkidama_name=pi",
        "two children have the same name",
    ),
    "no experiment": (
        "[parent]\npi0\n\n[children]\npi1\n",
        "genkidama_experiment=/no/such.toml",
        "genkidama_experiment = /no/such.toml",
    ),
    "wheels of one's own that differ": (
        "[parent]\npi0\n\n[children]\npi1 genkidama_own_wheels=/mine.whl\npi2\n",
        "",
        "genkidama_own_wheels differs between machines of the same kind",
    ),
    "no way to the parent": (
        "[parent]\npi0\n\n[children]\npi1\n",
        "genkidama_parent_address=10.77.0.99",
        "pi1 does not reach the parent at 10.77.0.99",
    ),
    "no such name": (
        "[parent]\npi0\n\n[children]\npi1\n",
        "genkidama_parent_address=elsewhere.local",
        "does not reach the parent at elsewhere.local",
    ),
    "too little memory": (
        "[parent]\npi0\n\n[children]\npi1\n",
        "genkidama_least_memory=9999999",
        "9999999 are needed",
    ),
    "too little disk": (
        "[parent]\npi0\n\n[children]\npi1\n",
        "genkidama_least_disk=999999999",
        "MB free under /opt: 999999999 are needed",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_inventory_is_refused_before_anything_is_changed(shelf: Shelf, case: str) -> None:
    text, variables, message = WRONG[case]
    inventory = (shelf.folder / "shelf.ini").read_text()
    shelf.write_inventory(
        variables
        if "genkidama_parent_address" in variables
        else f"genkidama_parent_address=pi0.local\n{variables}\n",
        text,
    )
    try:
        result = shelf.play("site.yml", check=False)
    finally:
        (shelf.folder / "shelf.ini").write_text(inventory)
    assert result.returncode != 0
    assert message in " ".join(result.stdout.split()), result.stdout + result.stderr
    assert not any(counts["changed"] for counts in recap(result.stdout).values())


def test_a_system_that_is_too_old_is_refused() -> None:
    folder = Path("/var/tmp/genkidama-shelf-old")
    shutil.rmtree(folder, ignore_errors=True)
    with Fleet(
        folder / "systems", base_image("bullseye"), {"old0": "10.77.0.10", "old1": "10.77.0.11"}
    ) as fleet:
        shelf = Shelf(fleet, "bookworm", folder)
        shelf.write_inventory(
            "genkidama_parent_address=10.77.0.10\n", "[parent]\nold0\n\n[children]\nold1\n"
        )
        result = shelf.play("site.yml", check=False)
        assert result.returncode != 0
        message = (
            "old1 has Python 3.9.2 (Debian 11.11): 3.11 is needed; "
            "install Raspberry Pi OS 12 (Bookworm) or later"
        )
        assert message in " ".join(result.stdout.split()), result.stdout
        assert not any(shelf.traces(system) for system in fleet.systems)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_dry_run_shows_what_would_be_done_and_does_nothing(shelf: Shelf) -> None:
    """Nor have the wrong inventories, before, left anything on a system."""
    result = shelf.play("site.yml", "--check", "--diff")
    assert all(
        counts["changed"] for host, counts in recap(result.stdout).items() if host != "localhost"
    )
    assert not any(shelf.traces(system) for system in ADDRESSES)
    assert not (shelf.folder / "secrets.yml").exists()


def test_one_command_makes_bare_systems_train(shelf: Shelf, figures: list[str]) -> None:
    shelf.began = time.time()
    result = shelf.play("site.yml")
    ended = time.time()
    first = {child: shelf.exchanges(child)[0]["time"] - shelf.began for child in CHILDREN}
    minutes = [
        seconds / 60 for seconds in (min(first.values()), max(first.values()), ended - shelf.began)
    ]
    figures.append(
        f"{shelf.release}: from bare systems to the first exchange {minutes[0]:.1f} min, "
        f"of both {minutes[1]:.1f}, all {minutes[2]:.1f}"
    )
    wheels = {
        role: sum(path.stat().st_size for path in shelf.wheels(role).glob("*.whl"))
        for role in ("parent", "child")
    }
    disk = {
        role: int(shelf.fleet.ssh(system, "du -sk /opt/genkidama").split()[0]) << 10
        for role, system in (("parent", "pi0"), ("child", "pi1"))
    }
    sizes = ", ".join(
        f"{role} {wheels[role] / 1e6:.0f} MB, installed {disk[role] / 1e6:.0f}" for role in wheels
    )
    figures.append(f"{shelf.release}: wheels of the {sizes}")
    assert all(
        counts["failed"] == counts["unreachable"] == 0 for counts in recap(result.stdout).values()
    )
    # What the doctor says of each.
    assert len(re.findall(r"\b0 failed", result.stdout)) == len(ADDRESSES)


def test_secrets_are_encrypted_at_home_and_kept_from_others_on_the_machines(shelf: Shelf) -> None:
    assert (shelf.folder / "secrets.yml").read_text().startswith("$ANSIBLE_VAULT;")
    for system, name in (("pi0", "key.pem"), ("pi0", "tokens"), ("pi1", "token")):
        assert shelf.fleet.ssh(
            system, f"sudo stat --format='%a %U %G' /etc/genkidama/{name}"
        ).split() == ["640", "root", "genkidama"]
    tokens = {shelf.fleet.ssh(child, "sudo cat /etc/genkidama/token").strip() for child in CHILDREN}
    assert len(tokens) == len(CHILDREN)
    assert all(len(token) >= 43 for token in tokens)  # 256 bits


def test_nobody_gets_in_without_a_token(shelf: Shelf) -> None:
    ask = (
        "sudo curl --silent --output /dev/null --write-out '%{http_code}' "
        "--cacert /etc/genkidama/ca.pem --http1.1 --max-time 5 "
    )
    upgrade = (
        "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' "
        "-H 'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==' "
    )
    assert shelf.fleet.ssh("pi1", f"{ask} {upgrade} https://pi0.local:8765/") == "401"
    assert shelf.fleet.ssh("pi1", f"{ask} https://pi0.local:8765/healthz") == "200"
    assert (
        shelf.fleet.ssh(
            "pi1", "sudo curl --silent --max-time 5 http://pi0.local:8765/healthz || echo refused"
        ).strip()
        == "refused"
    )


def test_units_are_hardened_and_watched(shelf: Shelf, figures: list[str]) -> None:
    for system, unit in (("pi0", "genkidama-parent"), ("pi1", "genkidama-child")):
        security = shelf.fleet.ssh(
            system, f"systemd-analyze security --no-pager --threshold=20 {unit}; echo status $?"
        )
        score = re.search(r"Overall exposure level for \S+: ([\d.]+)", security)
        assert score is not None
        assert security.rstrip().endswith("status 0"), security
        figures.append(f"{shelf.release}: systemd-analyze security {unit}: {score[1]}")
        assert (
            shelf.fleet.ssh(
                system, f"systemd-analyze verify /etc/systemd/system/{unit}.service 2>&1"
            ).strip()
            == ""
        )
        assert shelf.state(system, unit, "WatchdogTimestampMonotonic") not in ("", "0")
        assert shelf.state(system, unit, "User") == "genkidama"


def test_a_second_run_changes_nothing(shelf: Shelf) -> None:
    result = shelf.play("site.yml")
    assert {
        host: (counts["changed"], counts["failed"]) for host, counts in recap(result.stdout).items()
    } == dict.fromkeys(("localhost", *ADDRESSES), (0, 0))
    dry = shelf.play("site.yml", "--check", "--diff")
    assert not any(counts["changed"] for counts in recap(dry.stdout).values())


def test_the_children_learn(shelf: Shelf, figures: list[str]) -> None:
    until(
        lambda: (
            len(shelf.exchanges("pi1")) > 20
            and time.time() - shelf.exchanges("pi1")[0]["time"] > 75
        ),
        "75 s of training",
        200,
    )
    returns = [
        event["mean_return"]
        for event in history(shelf.run, "exchange")
        if event.get("mean_return") is not None
    ]
    trained = time.time() - shelf.exchanges("pi1")[0]["time"]
    early, late = statistics.mean(returns[:5]), statistics.mean(returns[-5:])
    figures.append(
        f"{shelf.release}: mean return {early:.0f} at the beginning, "
        f"{late:.0f} after {trained:.0f} s"
    )
    assert late > early + 50


def test_four_cores_live_in_one_gigabyte(shelf: Shelf, figures: list[str]) -> None:
    memory = shelf.fleet.memory("pi1")
    assert memory.killed == 0
    processes = int(shelf.fleet.ssh("pi1", "pgrep --count --uid genkidama"))
    rollups = "for pid in $(pgrep --uid genkidama); do cat /proc/$pid/smaps_rollup; done"
    rows = shelf.fleet.ssh("pi1", f"sudo sh -c '{rollups}' 2>/dev/null").splitlines()
    child = sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))
    system = f"of its 1 GiB the system uses {memory.used / 1e6:.0f} MB"
    figures.append(
        f"{shelf.release}: a 4-core child, {processes} processes: "
        f"{child / 1e6:.0f} MB (PSS); {system}"
    )
    assert processes >= 6  # the child, its nursery, four cores
    assert memory.used < 700e6


def test_status_tells_how_each_child_is(shelf: Shelf) -> None:
    shelf.fleet.cut("pi2")
    try:
        told = shelf.play("status.yml", "-T", "3", check=False).stdout
    finally:
        shelf.fleet.join("pi2")
    assert re.search(r"pi0 +parent +active +.*version \d+", told), told
    assert re.search(r"pi1 +child +active +.*exchange", told), told
    assert re.search(r"pi2 +not reachable", told), told
    shelf.exchanging("pi2")


def test_a_plug_that_is_pulled_stops_only_one_child_which_comes_back_by_itself(
    shelf: Shelf,
) -> None:
    shelf.fleet.pull_plug("pi1")
    shelf.exchanging("pi2")
    shelf.fleet.boot("pi1")
    shelf.exchanging("pi1", "pi2")


def test_after_a_reboot_of_the_parent_the_run_goes_on(shelf: Shelf) -> None:
    version = history(shelf.run, "exchange")[-1]["version"]
    shelf.fleet.reboot("pi0")
    shelf.exchanging(*CHILDREN)
    assert history(shelf.run, "exchange")[-1]["version"] >= version


def test_a_parent_that_crashes_goes_on_from_its_newest_checkpoint(shelf: Shelf) -> None:
    before = int(shelf.state("pi0", "genkidama-parent", "NRestarts"))
    shelf.fleet.ssh("pi0", "sudo systemctl kill --signal=KILL genkidama-parent")
    shelf.exchanging(*CHILDREN)
    assert int(shelf.state("pi0", "genkidama-parent", "NRestarts")) == before + 1


def test_a_child_that_hangs_is_started_again_by_the_watchdog(shelf: Shelf) -> None:
    folder = "/run/systemd/system/genkidama-child.service.d"
    shorter = "[Service]\\nWatchdogSec=10\\nRestartSec=1\\n"  # two minutes are a Pi's, not a test's
    again = "sudo systemctl daemon-reload; sudo systemctl restart genkidama-child"
    shelf.fleet.ssh(
        "pi2", f"sudo mkdir -p {folder}; printf '{shorter}' | sudo tee {folder}/short.conf; {again}"
    )
    shelf.exchanging("pi2")
    shelf.fleet.ssh(
        "pi2", "sudo kill -STOP $(systemctl show genkidama-child --value --property=MainPID)"
    )
    until(
        lambda: shelf.state("pi2", "genkidama-child", "NRestarts") == "1",
        "a restart by the watchdog",
        60,
    )
    shelf.exchanging("pi2")
    shelf.fleet.ssh("pi2", f"sudo rm -r {folder}; {again}")
    shelf.exchanging("pi2")


CUT = """
- name: Cut this run off
  ansible.builtin.debug:
    msg: "{{ lookup('ansible.builtin.pipe', 'kill -KILL $PPID') }}"
"""


def test_a_restart_that_a_run_was_cut_off_before_is_made_by_the_next(shelf: Shelf) -> None:
    cut = shelf.copy_checkout("cut")
    start = cut / "deploy/ansible/roles/started/tasks/main.yml"
    start.write_text(CUT + start.read_text())
    # From here on with one core each: Ansible needs the processor that plays all these machines,
    # too.
    shelf.write_inventory("genkidama_parent_address=pi0.local\n", ONE_CORE)
    only = ("--limit", "pi1,localhost")
    assert "PLAY RECAP" not in shelf.play("site.yml", *only, check=False, checkout=cut).stdout
    assert "cores = 1 " in shelf.fleet.ssh("pi1", "sudo cat /etc/genkidama/child.toml")
    assert " on 4 cores, " in shelf.state("pi1", "genkidama-child", "StatusText")
    shelf.play("site.yml", *only)
    assert " on 1 core, " in shelf.state("pi1", "genkidama-child", "StatusText")


def test_the_parents_name_is_one_variable(shelf: Shelf) -> None:
    shelf.write_inventory("genkidama_parent_address=10.77.0.10\n", ONE_CORE)
    result = shelf.play("site.yml")
    assert "certificate for 10.77.0.10" in result.stdout
    assert "wss://10.77.0.10:8765" in shelf.fleet.ssh("pi1", "sudo cat /etc/genkidama/child.toml")
    shelf.exchanging(*CHILDREN)


def test_a_child_that_leaves_the_inventory_is_locked_out(shelf: Shelf) -> None:
    inventory = shelf.folder / "shelf.ini"
    text = inventory.read_text()
    inventory.write_text(text.replace("pi2", "# pi2"))
    try:
        shelf.play("site.yml")
        shelf.fleet.ssh("pi2", "sudo systemctl restart genkidama-child")
        until(
            lambda: "token" in shelf.state("pi2", "genkidama-child", "StatusText"),
            "a status that speaks of the token",
            60,
        )
    finally:
        inventory.write_text(text)
    began = time.time()
    shelf.play("site.yml")
    shelf.exchanging("pi2")
    assert not [
        event
        for event in history(shelf.run, "leave")
        if event["child"] == "pi1" and event["time"] > began
    ]


def test_an_upgrade_takes_one_child_at_a_time_and_the_run_goes_on(shelf: Shelf) -> None:
    newer = shelf.copy_checkout("newer")
    module = newer / "genkidama/_version.py"
    module.write_text(
        re.sub(r'(?m)^__version__ = ".*"$', '__version__ = "99.0.0"', module.read_text())
    )
    began = time.time()
    shelf.play("upgrade.yml", checkout=newer)
    for system, role in (("pi0", "parent"), ("pi1", "child"), ("pi2", "child")):
        version = shelf.fleet.ssh(
            system,
            f"/opt/genkidama/{role}/bin/python -c 'import genkidama; print(genkidama.__version__)'",
        )
        assert version.strip() == "99.0.0"
        # The former one is gone.
        assert len(shelf.fleet.ssh(system, f"ls -d /opt/genkidama/{role}-*").split()) == 1
    # Somebody has trained all the time: no silence longer than a restart of the parent.
    times = [event["time"] for event in history(shelf.run, "exchange") if event["time"] > began]
    assert max(later - earlier for earlier, later in pairwise(times)) < 20


def test_an_upgrade_that_fails_goes_back_and_stops(shelf: Shelf) -> None:
    broken = shelf.copy_checkout("broken")
    module = broken / "genkidama/child/__main__.py"
    module.write_text(
        module.read_text().replace("def main(", "raise SystemExit('broken')\n\n\ndef main(", 1)
    )
    with (broken / "child/child.toml").open("a") as settings:  # what the old version refuses
        settings.write("unknown = 1  # new\n")
    (broken / "deploy/ansible/roles/settled/tasks/main.yml").write_text(
        (broken / "deploy/ansible/roles/settled/tasks/main.yml")
        .read_text()
        .replace("retries: 60", "retries: 3")
    )
    few = ("-e", "genkidama_least_disk=999999999")
    refused = shelf.play("upgrade.yml", *few, check=False, checkout=broken)
    assert "MB free under /opt: 999999999 are needed" in " ".join(refused.stdout.split())
    result = shelf.play("upgrade.yml", check=False, checkout=broken)
    assert result.returncode != 0
    assert "it is back at its former installation" in " ".join(result.stdout.split()), result.stdout
    shelf.exchanging(*CHILDREN)
    assert "PLAY [How are they?]" not in result.stdout
    versions = [
        shelf.fleet.ssh(
            child, "/opt/genkidama/child/bin/python -c 'import genkidama.child.__main__'"
        )
        for child in CHILDREN
    ]
    assert versions == ["", ""]
    assert len(shelf.fleet.ssh("pi1", "ls -d /opt/genkidama/child-*").split()) == 1


def test_the_doctor_is_content(shelf: Shelf) -> None:
    doctor = "/opt/genkidama/child/bin/genkidama doctor /etc/genkidama/child.toml --json"
    command = f"sudo runuser -u genkidama -- {doctor}"
    report = json.loads(shelf.fleet.ssh("pi1", f"cd /var/lib && {command}"))
    assert report["ok"], report


def test_checkpoints_come_home_and_play_better_than_chance(
    shelf: Shelf, figures: list[str]
) -> None:
    shelf.play("fetch.yml")
    evaluation = evaluate(Run.open(shelf.folder / "home/shelf"), episodes=50)
    figures.append(
        f"{shelf.release}: what was brought home scores {evaluation.mean:.0f} over 50 episodes"
    )
    assert evaluation.mean > -100


def test_stop_ends_it_with_a_last_push_and_a_final_checkpoint(shelf: Shelf) -> None:
    shelf.play("stop.yml")
    for system, unit in (
        ("pi0", "genkidama-parent"),
        ("pi1", "genkidama-child"),
        ("pi2", "genkidama-child"),
    ):
        assert shelf.state(system, unit, "ActiveState", "Result", "UnitFileState").split() == [
            "success",
            "inactive",
            "disabled",
        ]
        assert shelf.fleet.ssh(system, "pgrep --list-full --uid genkidama || true") == ""
    last = history(shelf.run, "exchange")[-1]["version"]
    assert any(str(last) in path.name for path in (shelf.run / "checkpoints").iterdir())


def test_a_search_needs_no_more_than_its_experiment(shelf: Shelf, figures: list[str]) -> None:
    optuna = pytest.importorskip("optuna")
    experiment = Experiment.load(ROOT / "examples/lunarlander/search.toml")
    experiment = experiment.with_settings(
        {"search.trials": 12, "search.phases": 3, "search.phase_steps": 10_000}
    )
    (shelf.folder / "search.toml").write_text(experiment.to_toml())
    home = shelf.folder / "home/search"

    def trials() -> list[Any]:
        """What the study says that was brought home."""
        assert f"genkidama report {home}" in shelf.play("fetch.yml").stdout
        assert sorted(path.name for path in home.glob("study*")) == ["study.db"]
        return optuna.load_study(storage=f"sqlite:///{home}/study.db", study_name="search").trials  # type: ignore[no-any-return]

    def site() -> str:
        return shelf.play(
            "site.yml",
            "-e",
            "genkidama_run=search",
            "-e",
            f"genkidama_experiment={shelf.folder}/search.toml",
        ).stdout

    units = (("pi0", "genkidama-parent"), ("pi1", "genkidama-child"), ("pi2", "genkidama-child"))

    began = time.time()
    site()
    assert trials()  # also while it runs
    for system, unit in units:
        until(
            lambda unit=unit, system=system: shelf.state(system, unit, "ActiveState") == "inactive",
            f"the end of {system}'s",
            400,
        )  # type: ignore[misc]
        assert shelf.state(system, unit, "Result") == "success"
    found = trials()
    figures.append(
        f"{shelf.release}: a search of {len(found)} short trials on two children: "
        f"{(time.time() - began) / 60:.1f} min"
    )
    assert len(found) == 12 and all(trial.state.is_finished() for trial in found)
    assert {record["node"] for trial in found for record in trial.user_attrs["phases"]} == set(
        CHILDREN
    )

    # Once it is over nobody is started to wait for it, and the doctor misses nobody.
    assert len(re.findall(r"\b0 failed", site())) == len(ADDRESSES)
    assert {shelf.state(system, unit, "ActiveState") for system, unit in units} == {"inactive"}


def test_uninstall_leaves_nothing_behind(shelf: Shelf) -> None:
    shutil.rmtree(shelf.folder / "home", ignore_errors=True)
    unreadable = "/var/lib/genkidama/runs/shelf/unreadable"
    shelf.fleet.ssh("pi0", f"sudo touch {unreadable}; sudo mount --bind /proc/1/mem {unreadable}")
    assert shelf.play("uninstall.yml", check=False).returncode != 0
    assert shelf.traces("pi1")  # nor is anything deleted elsewhere
    shelf.fleet.ssh("pi0", f"sudo umount {unreadable}")
    shelf.play("uninstall.yml")
    assert (shelf.folder / "home/shelf/checkpoints/best.safetensors").exists()
    assert {system: shelf.traces(system) for system in ADDRESSES} == {
        system: [] for system in ADDRESSES
    }
    assert "genkidama" not in shelf.fleet.ssh(
        "pi1", "systemctl list-unit-files; systemctl list-units --all"
    )
    again = shelf.play("uninstall.yml")
    assert not any(counts["changed"] for counts in recap(again.stdout).values())
