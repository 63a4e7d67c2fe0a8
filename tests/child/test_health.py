"""Health and power of machines: file trees like those of Raspberry Pis and of a laptop."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from genkidama.child import child as child_module
from genkidama.child import health as health_module
from genkidama.child.child import Child
from genkidama.child.health import Cooling, Health, pmic_watts
from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.runs.status import line
from tests.helpers import Serving, constant, eventually, history, running, small, url

#: `vcgencmd pmic_read_adc` of a Raspberry Pi 5, shortened: 0.9 + 0.5 W, and a rail without current.
PMIC = """\
  VDD_CORE_A current(7)=1.25000000A
  3V3_SYS_A current(1)=0.15151515A
  VDD_CORE_V volt(15)=0.72000000V
  3V3_SYS_V volt(9)=3.30000000V
       EXT5V_V volt(24)=5.15000000V
"""


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def figures(root: Path) -> dict[str, float]:
    """The figures of a machine's first child of some run."""
    with closing(Health(root)) as health:
        return health.figures(uuid.uuid4().hex, 0.0)


@pytest.fixture
def pi(tmp_path: Path) -> Path:
    """The files of a Raspberry Pi 4 that is hot and badly supplied."""
    files = {
        "sys/class/thermal/thermal_zone0/temp": "81234\n",
        "sys/class/thermal/thermal_zone1/temp": "40000\n",
        "sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "600000\n",
        "sys/firmware/devicetree/base/model": "Raspberry Pi 4 Model B Rev 1.4\0",
        "proc/net/wireless": (
            "Inter-| sta-|   Quality        |   Discarded packets\n"
            " face | tus | link level noise |  nwid  crypt   frag\n"
            " wlan0: 0000   52.  -58.  -256        0      0      0\n"
        ),
        "proc/meminfo": "MemTotal: 4000000 kB\nMemAvailable: 1500000 kB\n",
    }
    write(tmp_path, **files)
    return tmp_path


def test_a_pi_tells_its_health_and_its_power(pi: Path) -> None:
    found = figures(pi)
    assert found == {
        "celsius": 81.234,
        "throttled": 1.0,
        "undervoltage": 1.0,
        "megahertz": 600.0,
        "wifi_dbm": -58.0,
        "free_megabytes": 1536.0,
        "watts": 5.4,
    }
    write(pi, **{"sys/devices/platform/soc/soc:firmware/get_throttled": "50000\n"})
    found = figures(pi)  # it was throttled, and is not now
    assert (found["throttled"], found["undervoltage"]) == (0.0, 0.0)


def test_a_machine_that_tells_nothing_has_no_figures(tmp_path: Path) -> None:
    assert figures(tmp_path) == {}
    strange = {
        "sys/class/thermal/thermal_zone0/temp": "hot",
        "sys/devices/platform/soc/soc:firmware/get_throttled": "",
        "proc/net/wireless": "no such device",
        "sys/firmware/devicetree/base/model": "Somebody's board",
    }
    write(tmp_path, **strange)
    assert figures(tmp_path) == {}


def test_one_child_of_a_run_tells_the_power_of_its_machine(pi: Path) -> None:
    run = uuid.uuid4().hex
    first, second = Health(pi), Health(pi)
    assert "watts" in first.figures(run, 0.0) and "watts" not in second.figures(run, 0.0)
    assert "watts" in figures(pi)  # of another run
    first.close()
    assert "watts" in second.figures(run, 5.0)
    assert "watts" in second.figures(other := uuid.uuid4().hex, 10.0)  # with --stay
    assert "watts" not in first.figures(other, 10.0) and "watts" in first.figures(run, 10.0)
    first.close()
    second.close()


def test_a_processor_counts_its_energy(tmp_path: Path) -> None:
    packages = [f"sys/class/powercap/intel-rapl:{n}/energy_uj" for n in (0, 1)]
    part = "sys/class/powercap/intel-rapl:0:0/energy_uj"  # of the first package
    health, run = Health(tmp_path), uuid.uuid4().hex
    write(tmp_path, **dict.fromkeys([*packages, part], "1000000"))
    assert "watts" not in health.figures(run, 10.0)
    write(tmp_path, **{packages[0]: "51000000", packages[1]: "26000000", part: "41000000"})
    assert health.figures(run, 15.0)["watts"] == 15.0  # (50 + 25) J in 5 s
    write(tmp_path, **{packages[0]: "7"})
    assert "watts" not in health.figures(run, 20.0)  # a counter begins anew
    write(tmp_path, **{packages[0]: "10000007"})
    assert health.figures(run, 25.0)["watts"] == 2.0
    health.close()


def test_a_pi_5_is_asked_for_its_power_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, **{"sys/firmware/devicetree/base/model": "Raspberry Pi 5 Model B Rev 1.0\0"})
    program = tmp_path / "bin/vcgencmd"
    write(
        tmp_path, **{"bin/vcgencmd": f"#!/bin/sh\n[ $1 = pmic_read_adc ] && cat <<'E'\n{PMIC}E\n"}
    )
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert "watts" not in figures(tmp_path)  # it cannot be run
    program.chmod(0o755)
    watts = figures(tmp_path)["watts"]
    assert watts == pytest.approx(1.4 * 1.1451 + 0.5879)
    assert pmic_watts("VDD_CORE_A=1.5A\nVDD_CORE_V=0.8V\n") == pytest.approx(1.2 * 1.1451 + 0.5879)
    assert pmic_watts("error: not supported") is None


@pytest.mark.parametrize("trouble", ["throttled", "undervoltage"])
def test_a_machine_is_spared_while_it_is_in_trouble_again_and_again(trouble: str) -> None:
    def spared(*troubles: float, until: float = 600.0, every: float = 5.0) -> list[float]:
        """The first and the last moment when it is spared, measured so often."""
        cooling, found = Cooling(), []
        for k in range(int(until / every)):
            figures = {"throttled": 0.0, "undervoltage": 0.0, trouble: float(k * every in troubles)}
            if cooling.spares(figures, k * every):
                found.append(k * every)
        return [*found[:1], *found[-1:]]

    assert spared() == spared(100) == spared(100, 125) == spared(100, 220) == []
    assert spared(0, 30) == [30, 145] and spared(100, 215) == [215, 330]
    assert spared(*range(100, 205, 5)) == [130, 315]
    assert spared(100, 130, 240, 350) == [130, 465]
    assert spared(100, 130, 250, 600) == [130, 245]  # the cool while was just long enough
    assert not Cooling().spares({}, 0.0)


THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"


@pytest.mark.parametrize("exchange", ["free", "episode", "chunk"])
async def test_a_child_that_is_throttled_plays_fewer_lanes_until_it_has_cooled(
    pi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    monkeypatch.setattr(child_module, "Health", lambda: Health(pi))
    monkeypatch.setattr(child_module, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(health_module, "HOT_SECONDS", 0.02)
    monkeypatch.setattr(health_module, "COOL_SECONDS", 0.5)
    batch = {"batch_size": 64, "max_gradient_norm": 0.5}
    settings = small(
        environment={"lanes": 8}, algorithm=batch, child={"exchange": exchange, "cores": 1}
    )
    run = tmp_path / uuid.uuid4().hex
    with capture_logs() as logs:
        async with running(settings, run) as parent:
            child = Child(url(parent.address), name="pi-3")
            async with Serving(child):

                def steps() -> int:
                    """The steps of the core's newest batch, or chunk."""
                    backend: Any = child.backend
                    return int(backend.memory.head[0])

                def notes() -> list[str]:
                    found: list[str] = parent.status.document(parent.now())["run"]["notes"]
                    return [note for note in found if "lanes" in note]

                whole = 16 if exchange == "chunk" else 64
                await eventually(lambda: notes() == ["pi-3: throttled lately, 4 of 8 lanes"])
                await eventually(lambda: steps() == whole // 2)
                exchanges = child.counts.exchanges
                await eventually(lambda: child.counts.exchanges > exchanges + 2)
                assert steps() == whole // 2
                write(pi, **{THROTTLED: "50000\n"})
                await eventually(lambda: not notes() and steps() == whole)
    said = [line["event"] for line in logs if "lanes" in line["event"]]
    assert said == ["pi-3 is throttled: 4 of 8 lanes", "pi-3 has cooled down: 8 of 8 lanes"]
    rows = [line for line in history(run, "measures") if "resting_lanes" in line]
    assert {(row["lanes"], row["resting_lanes"]) for row in rows} == {(4.0, 4.0), (8.0, 0.0)}


@pytest.mark.parametrize(
    "sections",
    [
        {"environment": {"lanes": 1}},
        {"environment": {"lanes": 8, "vectorized": True}},
        {"algorithm": {"name": "dqn", "batch_size": 16}, "replay": {"steps": 5000}},
    ],
)
async def test_lanes_that_cannot_rest_are_not_told(sections: dict[str, Any]) -> None:
    assert CoreOrchestrator(small(**sections), 1).rest(0.5) is None


async def test_the_page_of_a_run_shows_the_health_of_its_children(
    pi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "Health", lambda: Health(pi))
    run = tmp_path / uuid.uuid4().hex
    async with running(constant(stop={"updates": 20}), run) as parent:
        host, port = parent.address
        pis = Child(f"ws://{host}:{port}", name="pi-1", cores=1)
        await pis.serve()
        await eventually(lambda: parent.server.stop)
        await eventually(lambda: parent.status.reason)
        (row,) = parent.status.children.values()
        document = parent.status.document(parent.now())
    assert row.figures["celsius"] == 81.234 and row.figures["watts"] == 5.4
    assert "celsius" not in document["learning"]["figures"]
    used = document["run"]["watt_hours"]
    assert 0.0 < used <= 5.4 / 60
    assert " Wh" in line({**document, "children": []})
