"""How long children take to notice the end of a cut.

Real children of a real parent, each in a network namespace behind a link of 100 Mbit/s, with a
share of a core, are cut off all at once: their packets vanish in the middle. `late` is, of each
child, the seconds from the end of the cut to the first of its pushes that the parent applied;
`lost`, how many had given up their connection.

`older` does without what kernels since 6.5 and 6.15 do for links that come and go: there TCP
doubles its pauses, as on a Raspberry Pi.

    .venv/bin/python -m studies.scaling.cuts             as root, 8 min
    .venv/bin/python -m studies.scaling.cuts --seconds 20 --kernels older
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks.processes import command, keep
from studies.scaling import ours
from studies.scaling.machines import Machines, folder_for, sweep
from studies.scaling.matrix import Condition, Row

#: Seconds before a cut, and after it.
_BEFORE, _AFTER = 8.37, 25.0

#: An interpreter for parent and children that knows no `TCP_RTO_MAX_MS`.
_OLDER = f"""#!{sys.executable}
import runpy, sys
from genkidama.runtime import machine
machine.TCP_RTO_MAX_MS = 9999
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def measure(seconds: float, kernel: str, children: int, share: float, root: Path) -> Row:
    """One cut of all children at once."""
    condition = Condition("experience", children, 1, "cuts", "ethernet", share)
    folder = folder_for(root / f"{kernel}-{seconds:g}", condition)
    limit = _BEFORE + seconds + _AFTER + (seconds if kernel == "older" else 0.0)
    with Machines(condition, folder, limit) as machines:
        if kernel == "older":
            interpreter = folder / "python"
            interpreter.write_text(_OLDER)
            interpreter.chmod(0o755)
            ours.INTERPRETER = str(interpreter)
            linear = ["sysctl", "-qw", "net.ipv4.tcp_syn_linear_timeouts=0"]
            for machine in range(children):
                subprocess.run(machines.network.at(machine, linear), check=True)
        machines.plan = [(_BEFORE, list(range(children))), (_BEFORE + seconds, [])]
        run = ours.Ours(machines, folder, goal=1e9, every=1e6)
        run.run(limit, late=0.0)
    end = run.begin + _BEFORE + seconds
    first: dict[str, float] = {}
    for line in (folder / "run" / "history.jsonl").read_bytes().splitlines():
        event = msgspec.json.decode(line)
        if event["event"] == "exchange" and event["time"] > end:
            first.setdefault(event["child"], round(event["time"] - end, 2))
    logs = [(folder / f"child-{number}.log").read_text() for number in range(children)]
    lost = sum("parent lost" in log.partition("goes away")[0] for log in logs)
    return {"kernel": kernel, "cut": seconds, "late": sorted(first.values()), "lost": lost}


@command
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, nargs="+", default=[5.0, 20.0, 60.0])
    parser.add_argument("--kernels", nargs="+", default=["this", "older"])
    parser.add_argument("--children", type=int, default=6)
    parser.add_argument("--share", type=float, default=0.05, help="of a core, for each child")
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    options = parser.parse_args()
    sweep()
    with tempfile.TemporaryDirectory(prefix="cuts-") as root:
        for kernel in options.kernels:
            for seconds in options.seconds:
                row = measure(seconds, kernel, options.children, options.share, Path(root))
                print(json.dumps(row), flush=True)
                keep(options.results, row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
