"""The `genkidama` command: what a user types wrong gets one line and an exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from genkidama.__main__ import main
from genkidama.child.__main__ import main as run_child
from genkidama.cli import verbs
from genkidama.cli.parser import VERBS
from genkidama.runs.evaluation import Evaluation
from genkidama.runs.run import Run
from tests.helpers import ROOT, command, python, small, untrained

#: The command as a wheel installs it, which does not put the current folder on the path.
CONSOLE = Path(sys.executable).parent / "genkidama"

Outcome = tuple[int, str, str]


@pytest.fixture
def genkidama(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Outcome]]:
    """Runs the command in this process and in an empty directory: exit code, output, error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    handler = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> Outcome:
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    yield run
    signal.signal(signal.SIGTERM, handler)


def experiment(path: Path, text: str = "") -> Path:
    file = path / "cart.toml"
    file.write_text(text or small().to_toml())
    return file


def test_a_path_that_the_system_refuses_is_named(genkidama: Callable[..., Outcome]) -> None:
    name = "a" * 300
    assert genkidama("train", name) == (1, "", f"error: {name}: File name too long\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gama = 0.9", "cart.toml: gama = 0.9: no such setting; "),
        (
            "[environment]\nid = 'NoSuch-v1'",
            "environment.id = 'NoSuch-v1': Gymnasium does not know it: ",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(
    tmp_path: Path, genkidama: Callable[..., Outcome], text: str, words: str
) -> None:
    code, out, err = genkidama("train", experiment(tmp_path, text))
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.toml"], "error: nowhere.toml: no such file"),
        (["."], "error: .: is a directory, expected a TOML file"),
        (
            [],
            "error: which experiment? give FILE.toml, "
            "the name of an example (`genkidama examples`), or --resume DIR",
        ),
        (
            ["cart.toml", "--set", "child.exchange"],
            "error: --set child.exchange: expected key=value",
        ),
        (
            ["cart.toml", "--set", "child.beta=2"],
            "error: the command line: child.beta = 2: expected float <= 1.0",
        ),
        (["cart.toml", "--children", "0"], "error: children = 0: at least 1 is needed"),
        (["cart.toml", "--cores", "0"], "error: cores = 0: at least 1 is needed"),
        (
            ["cart.toml", "--updates", "0"],
            "error: the command line: stop.updates = 0: expected int >= 1",
        ),
        (["cart.toml", "--seed", "-1"], "error: the command line: seed = -1: expected int >= 0"),
        (
            ["cart.toml", "--episodes", "-1"],
            "error: episodes = -1: at least 0 is needed",
        ),
        (["cart.toml", "--resume", "nowhere"], "error: nowhere: holds no run (no experiment.toml)"),
        (["--resume", "nowhere"], "error: nowhere: holds no run (no experiment.toml)"),
    ],
)
def test_a_wrong_option_is_one_line(
    tmp_path: Path, genkidama: Callable[..., Outcome], arguments: list[str], words: str
) -> None:
    experiment(tmp_path)
    code, out, err = genkidama("train", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(words) and err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("out", ["file", "file/run", "/proc/nowhere", "x" * 300])
def test_a_directory_that_cannot_be_written_is_the_machines_fault(
    tmp_path: Path, genkidama: Callable[..., Outcome], out: str
) -> None:
    (tmp_path / "file").write_text("")
    code, said, err = genkidama("train", experiment(tmp_path), "--out", out)
    assert (code, said) == (1, "")
    assert err.startswith(f"error: --out {out}: cannot be written: ") and err.endswith(
        "; choose another directory\n"
    )


def test_a_resumed_run_stays_where_it_is(tmp_path: Path, genkidama: Callable[..., Outcome]) -> None:
    untrained(tmp_path / "run", small())
    code, _, err = genkidama("train", "--resume", "run", "--out", "other")
    assert (code, err) == (
        2,
        "error: --out other: a resumed run stays in its directory run; give one of the two\n",
    )


def test_a_run_is_not_resumed_with_another_network(
    tmp_path: Path, genkidama: Callable[..., Outcome]
) -> None:
    run = untrained(tmp_path / "run", small())
    code, out, err = genkidama("train", "--resume", "run", "--set", "network.hidden=[9]")
    assert (code, out) == (2, "")
    assert (
        err.startswith("error: run: its checkpoints were made with network = ")
        and err.count("\n") == 1
    )
    assert run.experiment == small()  # and so it can be resumed as it was


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["nowhere"],
            "error: nowhere: no such checkpoint; name a .safetensors file or a run's directory",
        ),
        (
            ["."],
            "error: .: holds no run (no experiment.toml); give a run's directory, as runs/NAME",
        ),
        (["run", "--episodes", "0"], "error: episodes = 0: at least 1 is needed"),
        (["run", "--seed", "-1"], "error: seed = -1: 0 to 4294967295 is allowed"),
    ],
)
def test_an_evaluation_of_nothing_is_one_line(
    tmp_path: Path, genkidama: Callable[..., Outcome], arguments: list[str], words: str
) -> None:
    untrained(tmp_path / "run", small())
    assert genkidama("evaluate", *arguments) == (2, "", words + "\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["search"],
            "what is searched? give FILE.toml, "
            "the name of an example (`genkidama examples`), or --resume DIR",
        ),
        (["search", "nowhere.toml"], "nowhere.toml: no such file"),
        (
            ["search", "cart.toml"],
            "small: has no [search]; "
            "say what to vary, as `genkidama examples lunarlander/search` shows",
        ),
        (
            ["search", "search.toml", "--children", "0"],
            "children = 0: at least 1 is needed, or 0 with",
        ),
        (["search", "search.toml", "--children", "-1"], "children = -1: at least 1 is needed"),
        (["search", "search.toml", "--cores", "0"], "cores = 0: at least 1 is needed"),
        (
            ["search", "search.toml", "--out", "run"],
            "--out run: holds a run already; go on with it by --resume run",
        ),
        (
            ["search", "search.toml", "--set", "search.phases=0"],
            "the command line: search.phases = 0: expected int >= 1",
        ),
        (["search", "--resume", "nowhere"], "nowhere: holds no run"),
        (["train", "search.toml"], "small: has a [search]; start it with `genkidama search`"),
        (["train", "--resume", "run"], "small: has a [search]; start it with `genkidama search`"),
        (["report", "nowhere"], "nowhere: holds no run"),
        (
            ["report", "run/trials/0000"],
            "run/trials/0000: is not a search; `genkidama plot run/trials/0000` draws it",
        ),
    ],
)
def test_a_search_that_cannot_be_is_one_line(
    tmp_path: Path, genkidama: Callable[..., Outcome], arguments: list[str], words: str
) -> None:
    experiment(tmp_path)
    plan = {"space": {"optimizer.learning_rate": [0.1, 0.2]}, "phase_steps": 10}
    text = small(search=plan).to_toml()
    (tmp_path / "search.toml").write_text(text)
    trial = tmp_path / "run" / "trials" / "0000"
    trial.mkdir(parents=True)
    (tmp_path / "run" / "experiment.toml").write_text(text)
    (trial / "experiment.toml").write_text(small().to_toml())
    code, out, err = genkidama(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {words}") and err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_finished_says_so_and_how_to_go_on(
    tmp_path: Path, genkidama: Callable[..., Outcome]
) -> None:
    untrained(tmp_path / "run", small(stop={"steps": 100}), version=3)  # 150 steps
    code, out, err = genkidama("train", "--resume", "run", "--json")
    assert (code, json.loads(out)["steps"]) == (0, 150)
    assert err == (
        "run is finished: 100 steps done; "
        "go on: genkidama train --resume run --set stop.steps=200\n"
    )
    assert not (tmp_path / "run" / "history.jsonl").exists()  # nothing was started


@pytest.mark.skipif(not CONSOLE.exists(), reason="the command is not installed")
def test_the_console_command_finds_modules_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv as make\n"
        "gymnasium.register('Mine-v0', make)\n"
    )
    experiment(tmp_path, small(environment={"id": "my_env:Mine-v0"}).to_toml())
    command = [CONSOLE, "train", "cart.toml", "--children", "0"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert said.returncode == 2
    # That comes after its environment is looked up.
    assert said.stderr.startswith("error: children = 0: at least 1 is needed"), said.stderr


def test_a_closed_input_and_an_older_encoding_do_no_harm(tmp_path: Path) -> None:
    experiment(tmp_path, small(stop={"steps": 100}).to_toml())
    train = "train cart.toml --out run --children 1 --cores 1 --episodes 0 <&-"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"}
    for line in (train, "examples"):
        words = ["sh", "-c", f"exec {sys.executable} -m genkidama {line}"]
        said = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True)
        assert said.returncode == 0, said.stderr
    assert b"?" in said.stdout


def test_a_run_is_where_it_was_asked_for_though_a_module_changes_its_folder(
    tmp_path: Path,
) -> None:
    (assets := tmp_path / "assets").mkdir()
    (assets / "map.txt").write_text("a map")
    (tmp_path / "mover.py").write_text(
        "import os\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "os.chdir(os.path.join(os.path.dirname(__file__), 'assets'))\n"
        "class Mover(CartPoleEnv):\n"
        "    def reset(self, **more):\n"
        "        assert open('map.txt').read() == 'a map'\n"
        "        return super().reset(**more)\n"
    )
    experiment(tmp_path, small(environment={"id": "mover:Mover"}, stop={"steps": 100}).to_toml())
    train = "genkidama train cart.toml --out run --children 1 --cores 1 --episodes 1"
    ended = command(tmp_path, *train.split())
    assert ended.code == 0, ended.err
    assert Run(tmp_path / "run").snapshot.steps >= 100 and list(assets.iterdir()) == [
        assets / "map.txt"
    ]


def test_without_a_command_there_is_help(tmp_path: Path) -> None:
    found = command(tmp_path, "genkidama")
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("usage: genkidama") and "the first hour:" in found.out


def test_an_unknown_option_is_told_with_the_usage_of_its_verb(
    genkidama: Callable[..., Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        genkidama("evaluate", "run", "--determinstic")
    said = capsys.readouterr().err
    assert said.startswith("usage: genkidama evaluate ")
    assert said.endswith("unrecognized arguments: --determinstic; did you mean --deterministic?\n")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("trane", "did you mean 'train'?"), ("xyzzy", "`genkidama --help` lists them")],
)
def test_an_unknown_verb_is_one_line(
    genkidama: Callable[..., Outcome], name: str, hint: str
) -> None:
    assert genkidama(name, "run") == (2, "", f"error: unknown verb {name!r}; {hint}\n")


def test_an_installed_plug_in_brings_a_verb_and_a_method_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(
        "from genkidama.cli.options import Verb\n"
        "from genkidama.config.plugin import Plugin\n"
        "PLUGIN = Plugin(verbs={'hello': 'hello:HELLO'}, run_methods={'name': 'hello:name'})\n"
        "HELLO = Verb('greet', 'Greets.', (('who', {'help': 'a name'}),), (), 'hello:run')\n"
        "def run(options):\n    print('hello', options.who)\n    return 3\n"
        "def name(run):\n    return run.path.name\n"
    )
    folder = tmp_path / "hello-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[genkidama.plugins]\nhello = hello:PLUGIN\n")
    found = command(tmp_path, "genkidama", "hello", "you")
    assert (found.code, found.out, found.err) == (3, "hello you\n", "")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "experiment.toml").touch()
    (tmp_path / "show.py").write_text("import genkidama\nprint(genkidama.Run.open('one').name())\n")
    assert command(tmp_path, "show").out == "one\n"


def test_help_imports_no_package_and_nothing_large() -> None:
    code = """
import sys
before = set(sys.modules)
from genkidama.__main__ import main
for words in (["--help"], ["--version"], ["train", "--help"], ["doctor", "--help"]):
    try:
        main(words)
    except SystemExit as end:
        print(end.code, file=sys.stderr)
print(*set(sys.modules) - before, file=sys.stderr)
"""
    *statuses, last = python("-c", code).stderr.splitlines()
    modules = last.split()
    assert statuses == ["0"] * 4 and "genkidama.cli.parser" in modules
    roots = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    assert roots == {"genkidama"}
    assert not {"asyncio", "http", "multiprocessing", "socket", "ssl", "subprocess"} & set(modules)


def test_an_interrupted_command_has_the_shells_exit_code(
    tmp_path: Path, genkidama: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> Run:
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs, "train", interrupt)
    assert genkidama("train", experiment(tmp_path))[0] == 130


def test_json_has_no_nan(
    genkidama: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Evaluation(np.array([1.0, np.nan]), Path("best.safetensors"), None, False, 0, "", "")
    monkeypatch.setattr(verbs, "evaluate", lambda *_, **__: found)
    code, out, err = genkidama("evaluate", "run", "--json")
    assert (code, err) == (0, "")
    plain = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (plain["mean"], plain["episodes"]) == (None, 2)


TOKEN = "s3cr3t-s3cr3t-s3cr3t-s3cr3t"
JOIN = f"wss://*:{TOKEN}@127.0.0.1:1#{'0' * 64}"


@pytest.mark.parametrize(
    "words",
    [
        *([verb, JOIN] for verb in (*VERBS, "doctor") if verb not in ("join", "doctor", "top")),
        [JOIN],
        ["doctor", "--parent-role", "--parent", JOIN],
        ["top", JOIN, "--once"],
        ["doctor", JOIN],
        ["train", "--resume", JOIN],
        ["train", "--children", JOIN],
        ["token", "a", "--host", JOIN, "--listen", JOIN],
        ["evaluate", JOIN, "--environment", JOIN],
        ["join", JOIN[:-1]],
    ],
    ids=lambda words: " ".join(words).replace(JOIN, "STRING"),
)
def test_a_join_string_given_to_another_command_is_not_printed(
    genkidama: Callable[..., Outcome],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setenv("GENKIDAMA_TOKEN", TOKEN)  # as the doctor does, and it is taken back
    try:
        code, out, err = genkidama(*words)
    except SystemExit as ended:
        code, (out, err) = int(str(ended.code)), capsys.readouterr()
    assert code != 0 and (out or err)
    assert TOKEN not in out + err


def test_a_child_refuses_a_join_string_and_names_no_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_child(["--parent", JOIN, "--name", "a"]) == 2
    out, err = capsys.readouterr()
    assert TOKEN not in out + err
    assert "that is a join string, which `genkidama join` takes" in err
