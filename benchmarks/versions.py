"""A Parent of this checkout beside those of others: how many exchanges each carries, in turns.

No claim: it shows what a change costs. `exchange.py` measures a Parent against a bare server; on a
machine whose speed drifts, two runs of it differ by more than a change does. Here all Parents stay
up, and short windows alternate. The ratio is the median of the ratios of neighbouring windows.

    git worktree add ../before HEAD~20
    .venv/bin/python -m benchmarks.versions ../before [--size 3000] [--windows 40]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.processes import ROOT, free_port, keep, parser_of, start_parent, stop

sys.path.append(str(ROOT / "benchmarks"))  # exchange.py is a script, and finds its siblings there

import exchange


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("others", type=Path, nargs="+", help="other checkouts; the first is 1.00")
    parser.add_argument("--size", type=int, default=3000, help="numbers (default 3000)")
    parser.add_argument("--children", type=int, default=16)
    parser.add_argument("--windows", type=int, default=40, help="of each Parent (default 40)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a window (default 0.5)")
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    options = parser.parse_args()
    vector = exchange.random_vector(options.size)
    trees = [*(path.resolve() for path in options.others), ROOT]
    found: dict[Path, list[exchange.Window]] = {tree: [] for tree in trees}
    servers: dict[Path, tuple[subprocess.Popen[bytes], int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, tree in enumerate(trees):
                place = Path(folder) / str(number)
                place.mkdir()
                os.environ["PYTHONPATH"] = str(tree)
                os.chdir(tree)  # `python -m` looks here before anywhere else
                experiment = exchange.settings_for("blend", "adam", place)
                port = free_port()
                process = start_parent(experiment, place / "out", port, exchange.SERVER_CORE)
                servers[tree] = process, port
            for turn in range(options.windows + 1):
                for tree in trees if turn % 2 else trees[::-1]:
                    process, port = servers[tree]
                    with exchange.connected(port, options.children, vector, manners=True) as them:
                        exchange.run_window(them, process.pid, 0.15)
                        window = exchange.run_window(them, process.pid, options.seconds)
                    if turn:  # the first turn warms caches and allocators up
                        found[tree].append(window)
        finally:
            for process, _ in servers.values():
                stop(process)
    print(f"{'exchanges/s':>12} {'ratio':>6} {'CPU µs':>7} {'ratio':>6}  checkout")
    for tree, windows in found.items():
        pairs = list(zip(windows, found[trees[0]], strict=True))
        rate = statistics.median(one.rate / other.rate for one, other in pairs)
        cost = statistics.median(one.server_us / other.server_us for one, other in pairs)
        print(
            f"{statistics.median(one.rate for one in windows):>12,.0f} {rate:>6.3f} "
            f"{statistics.median(one.server_us for one in windows):>7.1f} {cost:>6.3f}  {tree}"
        )
        rates, costs = ([getattr(one, name) for one in windows] for name in ("rate", "server_us"))
        asked = {"children": options.children, "parameters": options.size}
        keep(options.results, {**asked, "rates": rates, "server_us": costs}, tree)


if __name__ == "__main__":
    main()
