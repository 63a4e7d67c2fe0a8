"""Health of a machine and the power that it takes, as measures of its child. Linux only.

Laws of this file:
- A figure that this machine does not tell is left out.
- Of all children of one run on a machine, one tells the power, which is that of the whole machine.
"""

from __future__ import annotations

import math
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from genkidama.runtime.machine import available_bytes

#: Seconds between two measurements.
EVERY_SECONDS = 5.0

#: A machine whose troubles last so long is spared, until it had none for so long.
HOT_SECONDS, COOL_SECONDS = 30.0, 120.0

#: Watts of boards with all cores busy, by the beginning of their names: the Raspberry Pi Dramble's
#: measurements (pidramble.com, "power consumption"), and chipwired.com's of the 4.
BOARDS = {
    "Raspberry Pi 4 Model B": 5.4,
    "Raspberry Pi 3 Model B Plus": 5.1,
    "Raspberry Pi 3 Model B Rev": 3.7,
    "Raspberry Pi 2 Model B": 2.1,
    "Raspberry Pi Zero W": 1.2,
}

#: Rails of a Raspberry Pi 5's power chip to watts at its socket, by the least squares that are in
#: use: rails · 1.1451 + 0.5879.
_PMIC = (1.1451, 0.5879)

#: A line as `VDD_CORE_V volt(15)=0.7200000V`, also without the words in the middle.
_RAIL = re.compile(r"(\w+)_([AV])(?: \w+\(\d+\))?=([\d.]+)[AV]")


class Cooling:
    """Decides whether a machine is spared, from one measurement after the other.

    It is spared once two troubles lie `HOT_SECONDS` apart, without `COOL_SECONDS` between any two
    that follow each other: a machine at its limit is in trouble now and then. It no longer is when
    the last trouble is `COOL_SECONDS` ago.
    """

    def __init__(self) -> None:
        self._first, self._last = math.inf, -math.inf

    def spares(self, figures: Mapping[str, float], now: float) -> bool:
        """True while the machine is spared; `figures` are the newest of `Health`."""
        if now - self._last >= COOL_SECONDS:
            self._first = math.inf
        if figures.get("throttled") or figures.get("undervoltage"):
            self._first, self._last = min(self._first, now), now
        return self._last - self._first >= HOT_SECONDS


class Health:
    """Figures of this machine.

    Args:
        root: of its file system.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        #: The socket whose name says that this child tells the power of a machine in a run.
        self._power: socket.socket | None = None
        self._run = ""
        #: The package's counters in microjoules, and when they were read.
        self._energy: tuple[dict[Path, int], float] | None = None
        self._pmic = True

    def close(self) -> None:
        """Lets another child tell the power."""
        if self._power is not None:
            self._power.close()
            self._power = None

    def figures(self, run: str, now: float) -> dict[str, float]:
        """All figures: °C, MHz, MB, dBm and W; 1 or 0 of `throttled` and `undervoltage`.

        Args:
            run: the run, whose machines count once each.
            now: seconds, never less than at the call before.
        """
        return dict(self._figures(run, now)) if sys.platform == "linux" else {}

    def _figures(self, run: str, now: float) -> Iterator[tuple[str, float]]:
        root = self._root
        if celsius := hottest(root):
            yield "celsius", celsius
        for path in root.glob("sys/devices/platform/soc*/soc*firmware/get_throttled"):
            with suppress(OSError, ValueError):
                bits = int(path.read_text(), 16)
                yield "throttled", float(bits & 0b1110 != 0)
                yield "undervoltage", float(bits & 1)
        clock = _number(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
        if clock is not None:
            yield "megahertz", clock / 1000
        with suppress(OSError, ValueError, IndexError):
            rows = (root / "proc/net/wireless").read_text().splitlines()[2:]
            yield "wifi_dbm", max(float(row.split()[3]) for row in rows)
        free = available_bytes(root)
        if free is not None:
            yield "free_megabytes", free / 1e6
        if self._is_first(run) and (watts := self._watts(now)) is not None:
            yield "watts", watts

    def _is_first(self, run: str) -> bool:
        """True if no other child on this machine tells the run's power."""
        if run != self._run:
            self.close()
            self._run = run
        if self._power is None:
            name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                name.bind(f"\0genkidama-watts-{run}"[:100])
                self._power = name
            except OSError:
                name.close()
        return self._power is not None

    def _watts(self, now: float) -> float | None:
        """Watts as the processor counts them, the power chip measures or a table has them."""
        if (counted := self._counted(now)) is not None:
            return counted
        with suppress(OSError):
            model = (self._root / "sys/firmware/devicetree/base/model").read_text()
            if "Raspberry Pi 5" in model or "Compute Module 5" in model:
                return self._measured()
            return next((watts for name, watts in BOARDS.items() if model.startswith(name)), None)
        return None

    def _counted(self, now: float) -> float | None:
        """Watts since the last call, by RAPL (Intel's and AMD's); None where it cannot be read."""
        counters = {}
        for path in self._root.glob("sys/class/powercap/intel-rapl:?/energy_uj"):
            if (energy := _number(path)) is not None:
                counters[path] = int(energy)
        before, self._energy = self._energy, (counters, now) if counters else None
        if before is None or not counters or now <= before[1]:
            return None
        # A counter that has begun anew says nothing of this interval.
        used = [(energy - before[0].get(path, energy)) / 1e6 for path, energy in counters.items()]
        return sum(used) / (now - before[1]) if min(used) >= 0.0 else None

    def _measured(self) -> float | None:
        """Watts of a Raspberry Pi 5, if `vcgencmd` may ask its power chip."""
        if not self._pmic:
            return None
        command = ["vcgencmd", "pmic_read_adc"]
        try:
            told = subprocess.run(command, capture_output=True, text=True, timeout=1.0, check=True)
        except (OSError, subprocess.SubprocessError):
            self._pmic = False
            return None
        return pmic_watts(told.stdout)


def hottest(root: Path = Path("/")) -> float:
    """The °C of this machine's hottest sensor; 0 without any."""
    degrees = [_number(path) for path in root.glob("sys/class/thermal/thermal_zone*/temp")]
    return max((each for each in degrees if each is not None), default=0.0) / 1000


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def pmic_watts(text: str) -> float | None:
    """Watts of the output of `vcgencmd pmic_read_adc`; None if it has no rails."""
    rails: dict[str, dict[str, float]] = {}
    for name, unit, value in _RAIL.findall(text):
        rails.setdefault(name, {})[unit] = float(value)
    pairs = [rail["A"] * rail["V"] for rail in rails.values() if len(rail) == 2]
    return _PMIC[0] * sum(pairs) + _PMIC[1] if pairs else None
