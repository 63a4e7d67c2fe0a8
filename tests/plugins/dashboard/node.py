"""The page's modules in Node.js: function bodies run on data, and their results come back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.made_up import STATIC

#: Runs a function body on named data, `data.NAME` there; gives what it returns.
Node = Callable[..., Any]

#: Random numbers of a generator that anybody can write: Park and Miller's.
_SEEDED = "const seeded = (seed) => () => (seed = (seed * 48271) % 2147483647) / 2147483647;"


#: Answers lines of a body and its data.
_ANSWER = """
for await (const line of createInterface({ input: process.stdin })) {
  const [body, data] = JSON.parse(line);
  let answer;
  try {
    answer = { found: eval(`(() => {${body}})()`) };
  } catch (error) {
    answer = { error: error.stack };
  }
  console.log(JSON.stringify(answer));
}
"""


@contextmanager
def in_node(folder: Path, modules: Sequence[str], *first: str) -> Iterator[Node]:
    """A `Node` with these modules of the page in `folder`, after lines of imports and others. One
    process runs all bodies. Skips the test where there is no Node.js."""
    if shutil.which("node") is None:
        pytest.skip("needs Node.js")
    for name in modules:
        text = (STATIC / f"{name}.js").read_text().replace('.js";', '.mjs";')
        (folder / f"{name}.mjs").write_text(text)
    script = folder / "run.mjs"
    lines = ['import { createInterface } from "node:readline";', *first, _SEEDED, _ANSWER]
    script.write_text("\n".join(lines))
    with subprocess.Popen(
        ["node", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def run(body: str, **data: Any) -> Any:
            asked.write(json.dumps([body, data]) + "\n")
            asked.flush()
            answer = json.loads(answers.readline())
            assert "error" not in answer, answer["error"]
            return answer["found"]

        yield run
