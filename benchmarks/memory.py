"""What a child costs in memory.

Claim: a whole child with four cores takes at most 110 MB, and each further core at most 12 MB that
it shares with no other process.

Method: a Parent and one Child with 1, 2 and 4 cores, as users start them, train until a few
exchanges are in the history. Then the script adds up all processes of the child (its whole tree,
and all else in its session) from `/proc/PID/smaps_rollup`. It does so a few times, and the largest
sum counts.

- *proportional* set size (PSS): a page shared by k processes counts 1/k in each of them. So the sum
  over the child is its own share. It leaves out a few megabytes: the interpreter and the C library
  are open in this script and in the Parent, too.
- *private*: pages that only this one process has (clean and dirty). The cost of a further core is
  given twice. One figure is the mean of the private megabytes of the largest child's core
  processes. The other is the slope of the whole child's sums from the fewest to the most cores; it
  includes the noise of the rest.

    python benchmarks/memory.py
    python benchmarks/memory.py --cores 4 --exchanges 20 --json
    python benchmarks/memory.py --pid 1234       any running process with its children

This needs Linux, and the right to read the processes' smaps_rollup (the same user).
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from processes import ROOT, family, free_port, history, keep, parser_of, start, start_parent, stop

EXPERIMENT = ROOT / "examples" / "lunarlander" / "lunarlander.toml"


@dataclass(frozen=True)
class Process:
    """One process; sizes in MB (10⁶ bytes)."""

    pid: int
    parent: int
    command: str
    threads: int
    pss: float
    private: float


def megabytes(pid: int) -> dict[str, float]:
    """The sizes of one process, by their names in `smaps_rollup`."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = (line.partition(":") for line in lines)
    return {name: int(value.split()[0]) * 1024 / 1e6 for name, _, value in fields}


def look(pid: int) -> list[Process]:
    """All living processes of the tree, with their sizes now."""
    found = []
    for member, fields in family(pid).items():
        with contextlib.suppress(OSError):  # it has ended
            text = Path(f"/proc/{member}/cmdline").read_bytes().decode(errors="replace")
            program, *words = text.rstrip("\0").split("\0")
            command = " ".join([Path(program).name, *words])  # without this machine's folder
            sizes = megabytes(member)
            private = sizes["Private_Clean"] + sizes["Private_Dirty"]
            parent, threads = int(fields[1]), int(fields[17])
            found.append(Process(member, parent, command, threads, sizes["Pss"], private))
    return found


def total(processes: list[Process]) -> float:
    return sum(process.pss for process in processes)


def core_private(processes: list[Process]) -> float:
    """Mean of the cores' private megabytes. The child's small server process forks the cores."""
    root = processes[0].pid
    sizes = [
        process.private for process in processes if process.pid != root and process.parent != root
    ]
    return sum(sizes) / len(sizes) if sizes else 0.0


def measure(experiment: Path, cores: int, wanted: int, directory: Path) -> list[Process]:
    """The largest of five looks at a Child with so many cores, from its `wanted`-th exchange on."""
    port, out = free_port(), directory / f"cores-{cores}"
    parent = start_parent(experiment, out, port)
    log = directory / f"child-{cores}.log"
    own = f"-m genkidama.child --parent ws://127.0.0.1:{port} --cores {cores}"
    child = start([sys.executable, *own.split()], log)
    try:
        deadline = time.monotonic() + 120.0
        while len(history(out, "exchange")) < wanted:
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(
                    f"the child has not exchanged {wanted} times:\n"
                    f"{log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.2)
        looks = []
        for _ in range(5):
            looks.append(look(child.pid))
            time.sleep(0.5)
        return max(looks, key=total)
    finally:
        stop(child)
        stop(parent)


def show(cores: int | None, processes: list[Process]) -> None:
    title = "the tree" if cores is None else f"a child with {cores} core{'s' if cores > 1 else ''}"
    print(f"{title}: {total(processes):.1f} MB proportional, {len(processes)} processes")
    for process in processes:
        sizes = f"{process.pss:>8.1f} MB proportional {process.private:>8.1f} MB private"
        print(f"  {process.pid:>7} {process.threads:>3} threads {sizes}  {process.command[:60]}")
    sys.stdout.flush()


def slope(found: dict[int, list[Process]]) -> dict[str, float]:
    """What each core adds, between the fewest and the most cores."""
    few, many = min(found), max(found)
    added = {"pss": total(found[many]) - total(found[few])}
    added["private"] = sum(process.private for process in found[many]) - sum(
        process.private for process in found[few]
    )
    return {"core_private": core_private(found[many])} | {
        name: value / (many - few) for name, value in added.items()
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--experiment", type=Path, default=EXPERIMENT, metavar="FILE.toml")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2, 4], metavar="N")
    parser.add_argument(
        "--exchanges",
        type=int,
        default=10,
        metavar="N",
        help="look after so many exchanges (default 10)",
    )
    parser.add_argument("--pid", type=int, help="only look at this process and its children")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    options = parser.parse_args()
    if options.pid:
        found: dict[int, list[Process]] = {0: look(options.pid)}
        if not options.json:
            show(None, found[0])
    else:
        found = {}
        with tempfile.TemporaryDirectory(prefix="memory-") as directory:
            for cores in sorted(set(options.cores)):
                found[cores] = measure(
                    options.experiment, cores, options.exchanges, Path(directory)
                )
                if not options.json:
                    show(cores, found[cores])
    further = slope(found) if len(found) > 1 else {}
    children = [
        {
            "cores": cores,
            "pss": total(members),
            "processes": [asdict(member) for member in members],
        }
        for cores, members in found.items()
    ]
    for child in children:
        keep(options.results, {"experiment": options.experiment.name, **child})
    if options.json:
        print(json.dumps({"children": children, "further_core": further}))
    elif further:
        print(f"a core process: {further['core_private']:.1f} MB private")
        print(
            f"a further core, by slope: {further['private']:.1f} MB private, "
            f"{further['pss']:.1f} MB proportional"
        )


if __name__ == "__main__":
    main()
