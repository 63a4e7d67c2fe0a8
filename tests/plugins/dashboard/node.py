"""The page's modules in Node.js: a function body runs on data, and its result comes back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.made_up import STATIC

#: Runs a function body on data; gives what it returns.
Node = Callable[..., Any]

#: Random numbers of a generator that anybody can write: Park and Miller's.
_SEEDED = "const seeded = (seed) => () => (seed = (seed * 48271) % 2147483647) / 2147483647;"


def in_node(folder: Path, modules: Sequence[str], *first: str) -> Node:
    """A `Node` with these modules of the page in `folder`, after lines of imports and others."""
    for name in modules:
        text = (STATIC / f"{name}.js").read_text().replace('.js";', '.mjs";')
        (folder / f"{name}.mjs").write_text(text)
    script = folder / "run.mjs"

    def run(body: str, **data: Any) -> Any:
        lines = [
            'import { readFileSync } from "node:fs";',
            *first,
            'const data = JSON.parse(readFileSync(0, "utf8"));',
            _SEEDED,
            f"const run = () => {{{body}}};",
            "console.log(JSON.stringify(run()));",
        ]
        script.write_text("\n".join(lines))
        done = subprocess.run(
            ["node", script], input=json.dumps(data), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
