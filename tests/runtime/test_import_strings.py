from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.allowlist import imports
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment, Wrapper
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.runs.resume import default_threshold
from genkidama.runtime.import_strings import (
    check_environment,
    describe_error,
    describe_exit,
    draws,
    environment_spec,
    is_import_string,
    is_user_error,
    load_object,
    load_wrapper,
    print_user_traceback,
)
from tests.vectorized import CORRIDORS


@pytest.mark.parametrize(
    ("name", "plug"),
    [
        ("package.module:Name", True),
        ("LunarLander-v3", False),
        ("ALE/Pong-v5", False),
        ("ale_py:ALE/Pong-v5", False),
        ("", False),
    ],
)
def test_an_import_string_has_a_colon(name: str, plug: bool) -> None:
    assert is_import_string(name) is plug


def test_what_is_named_is_loaded() -> None:
    assert load_object("collections:OrderedDict", "network.name") is OrderedDict


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plug_raises.py").write_text("raise RuntimeError('no luck')\n")
    (tmp_path / "plug_wrong.py").write_text("def broken(:\n")
    (tmp_path / "plug_needs.py").write_text("import plug_absent\n")
    (tmp_path / "plug_fine.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)


ABSENT = "No module named 'plug_absent'; is it installed or on PYTHONPATH?"
NO_IMPORT_STRING = "is no import string; expected 'module:Name'"
NO_WRAPPER = "is no subclass of gymnasium.Wrapper; name one as 'module:Class'"


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("plug_absent:X", f"cannot import 'plug_absent': {ABSENT}"),
        ("plug_needs:X", f"cannot import 'plug_needs': {ABSENT}"),
        (
            "plug_raises:X",
            "importing 'plug_raises' fails: RuntimeError: no luck (plug_raises.py:1)",
        ),
        (
            "plug_wrong:X",
            "importing 'plug_wrong' fails: SyntaxError: invalid syntax (plug_wrong.py:1)",
        ),
        ("plug_fine:question", "module 'plug_fine' has no 'question'"),
        ("plug_fine:", NO_IMPORT_STRING),
        ("plug_fine: answer", NO_IMPORT_STRING),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the modules are
    with pytest.raises(ConfigurationError) as caught:
        load_object(name, "network.name")
    assert str(caught.value) == f"network.name = {name!r}: {sentence}"


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    "name", ["LunarLander-v3", "plug_fine:answer", "ale_py:ALE/Pong-v5", CORRIDORS]
)
def test_an_environment_that_exists_is_accepted(name: str) -> None:
    check_environment(Experiment(environment=Environment(id=name)))


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("MoonLander-v3", "environment.id = 'MoonLander-v3': Gymnasium does not know it: "),
        ("LunarLander-v99", "environment.id = 'LunarLander-v99': Gymnasium does not know it: "),
        ("ALE/Pnog-v5", "environment.id = 'ALE/Pnog-v5': "),
        ("plug_absent:Some/Thing-v0", "environment.id = 'plug_absent:Some/Thing-v0': "),
        ("plug_fine:make", "environment.id = 'plug_fine:make': module 'plug_fine' has no 'make'"),
    ],
)
def test_an_environment_that_does_not_exist_is_told_in_one_line(name: str, beginning: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_environment(Experiment(environment=Environment(id=name)))
    assert str(caught.value).startswith(beginning)
    assert len(str(caught.value).splitlines()) == 1


class Watch:
    """Notes on `sys.meta_path` what is imported of a certain name, and finds nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find_spec(self, name: str, *_: object) -> None:
        if "trap" in name:
            self.asked.append(name)


#: What is nearly an import string of the module `trap`, or is one.
near_imports = st.lists(
    st.sampled_from([*".: \t\n\u00a0\u200b/Xé", "trap", "-v0", "ALE/", "envpool:"]),
    min_size=1,
    max_size=8,
).map("".join)


@given(st.one_of(near_imports, near_imports.map("trap:{}".format), st.text("trapX:. ")))
def test_what_permission_lets_pass_imports_nothing_beyond_it(text: str) -> None:
    """Whatever follows a name takes it apart as `check_imports` does."""
    watch = Watch()
    sys.meta_path.insert(0, watch)  # type: ignore[arg-type]
    keys: dict[str, tuple[dict[str, Any], Callable[[], object]]] = {
        "environment.id": ({"environment": {"id": text}}, lambda: environment_spec(text)),
        "the whole environment": (
            {"environment": {"id": text}},
            lambda: make_environment(Environment(id=text)),
        ),
        "its goal": (
            {"environment": {"id": text}},
            lambda: default_threshold(Environment(id=text)),
        ),
        "environment.wrappers": (
            {"environment": {"wrappers": [{"name": text}]}},
            lambda: load_wrapper(Wrapper(name=text), "environment.wrappers[0]"),
        ),
        "network.name": ({"network": {"name": text}}, lambda: load_object(text, "network.name")),
    }
    try:
        for key, (settings, follow) in keys.items():
            named = {module for _, module in imports(settings).values()}
            with suppress(ConfigurationError):
                follow()
            # A package is imported before what is inside it.
            beyond = [
                name
                for name in watch.asked
                if not any(f"{module}.".startswith(f"{name}.") for module in named)
            ]
            assert not beyond, f"{key} = {text!r}"
            watch.asked.clear()
    finally:
        sys.meta_path.remove(watch)  # type: ignore[arg-type]


class Bare(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes no options."""

    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        super().__init__(environment)


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("FrameStackObservation", {"stack_size": 4}, gymnasium.wrappers.FrameStackObservation),
        ("AtariPreprocessing", {"noop_max": 0}, gymnasium.wrappers.AtariPreprocessing),
        ("gymnasium.wrappers:TimeLimit", {"max_episode_steps": 1}, gymnasium.wrappers.TimeLimit),
        (f"{__name__}:Bare", {}, Bare),
    ],
)
def test_a_wrapper_is_gymnasiums_or_ones_own(
    name: str, options: dict[str, Any], kind: type[Any]
) -> None:
    wrapper = Wrapper(name=name, options=options)
    assert load_wrapper(wrapper, "environment.wrappers[0]") is kind
    check_environment(Experiment(environment=Environment(id="CartPole-v1", wrappers=(wrapper,))))


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("FrameStack", {}, "no wrapper of Gymnasium's; did you mean 'FrameStackObservation'?"),
        (
            "ScaleObservation",
            {},
            "no wrapper of Gymnasium's; did you mean 'RescaleObservation' or '",
        ),
        ("vector", {}, "no wrapper of Gymnasium's; it has AddRenderObservation, "),
        ("plug_absent:Mine", {}, f"cannot import 'plug_absent': {ABSENT}"),
        ("plug_fine:Mine", {}, "module 'plug_fine' has no 'Mine'"),
        ("plug_fine:answer", {}, NO_WRAPPER),
        ("collections:OrderedDict", {}, NO_WRAPPER),
        (
            "FrameStackObservation",
            {"stack": 4},
            "options = {'stack': 4}: missing a required argument: 'stack_size'; "
            "its options: stack_size, padding_type",
        ),
        (
            "FrameStackObservation",
            {"stack_size": 4, "padding": "zero"},
            "options = {'stack_size': 4, 'padding': 'zero'}: "
            "got an unexpected keyword argument 'padding'; its options: stack_size, ",
        ),
        (
            f"{__name__}:Bare",
            {"a": 1},
            "options = {'a': 1}: got an unexpected keyword argument 'a'; its options: none",
        ),
    ],
)
def test_what_is_no_wrapper_or_does_not_take_its_options_is_told_in_one_line(
    name: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_wrapper(Wrapper(name=name, options=options), "environment.wrappers[3]")
    assert str(caught.value).startswith(f"environment.wrappers[3] = {name!r}: {sentence}")
    assert len(str(caught.value).splitlines()) == 1


def test_where_something_is_not_installed_the_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    atari = Experiment(
        environment=Environment(id="ALE/Pong-v5", wrappers=(Wrapper(name="AtariPreprocessing"),))
    )
    check_environment(atari)
    monkeypatch.setitem(sys.modules, "cv2", None)  # as Python notes that there is no such module
    with pytest.raises(ConfigurationError) as caught:
        check_environment(atari)
    assert str(caught.value) == (
        "environment.wrappers[0] = 'AtariPreprocessing': needs OpenCV, which is not installed: "
        "pip install 'genkidama-rl[atari]'"
    )
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for name in ("ALE/Pong-v5", "ale_py:ALE/Pong-v5"):
        with pytest.raises(ConfigurationError) as caught:
            check_environment(Experiment(environment=Environment(id=name)))
        assert str(caught.value).startswith(
            f"environment.id = {name!r}: needs the Arcade Learning Environment: "
        )
        assert str(caught.value).endswith(": pip install 'genkidama-rl[atari]'")
        assert len(str(caught.value).splitlines()) == 1


def test_what_has_no_vectorized_form_of_its_own_is_told_early() -> None:
    check_environment(Experiment(environment=Environment(id="ALE/Pong-v5", vectorized=True)))
    with pytest.raises(ConfigurationError) as caught:
        check_environment(Experiment(environment=Environment(id="LunarLander-v3", vectorized=True)))
    assert str(caught.value) == (
        "environment.vectorized = True: 'LunarLander-v3' is not registered with a vectorized "
        "form of its own; set it to false"
    )


@pytest.mark.parametrize("entry_point", [None, "__main__:Mine", "class"])
def test_what_a_notebook_defines_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, entry_point: str | None
) -> None:
    """Children could not import it, whatever it is registered as."""
    mine = type("Mine", (gymnasium.Env,), {"__module__": "__main__"})
    name = "__main__:Mine" if entry_point is None else "Mine-v0"
    if entry_point is not None:
        spec = EnvSpec("Mine-v0", mine if entry_point == "class" else entry_point)
        monkeypatch.setitem(gymnasium.registry, "Mine-v0", spec)
    with pytest.raises(ConfigurationError) as raised:
        check_environment(Experiment(environment=Environment(id=name)))
    assert str(raised.value) == (
        f"environment.id = {name!r}: no other process can import by this name what a script or a "
        "notebook defines; write it into a file, as my_module.py, and name it 'my_module:Mine'"
    )


def raised(code: str, file: str = "my_env.py") -> Exception:
    """What a user's code in this file raises."""
    try:
        exec(compile(code, file, "exec"), {"json": json})
    except Exception as error:
        return error
    raise AssertionError("it raises nothing")


def test_the_innermost_line_of_the_users_own_code_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(tmp_path / "my_env.py")
    error = raised("def step():\n    json.loads('{')\nstep()", file)
    assert describe_error(error).startswith("JSONDecodeError: Expecting property name")
    assert describe_error(error).endswith(" (my_env.py:2, in step)")  # not a line of json's
    assert describe_error(raised("\n\nraise KeyError('my bug')", file)) == (
        "KeyError: 'my bug' (my_env.py:3)"
    )
    assert describe_error(raised("raise ValueError('two\\nlines')", "/far/away.py")) == (
        "ValueError: two lines (/far/away.py:1)"
    )


def test_what_no_user_wrote_has_no_place() -> None:
    try:
        json.loads.__call__("{")
    except ValueError as error:
        assert "test_import_strings.py" in describe_error(error)
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        assert (
            describe_error(error).startswith("JSONDecodeError: ")
            and "(" not in describe_error(error)[-3:]
        )
        assert not is_user_error(error)


def test_a_file_that_is_no_python_is_named_once() -> None:
    error = raised("def", "/far/wrong.py")
    assert describe_error(error) == "SyntaxError: invalid syntax (/far/wrong.py:1)"


def test_an_error_that_a_users_error_has_caused_is_the_users(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = RuntimeError("cannot be built")
    assert not is_user_error(error)
    print_user_traceback(error)
    assert capsys.readouterr().err == ""
    error.__cause__ = raised("raise KeyError('my bug')")
    assert is_user_error(error)
    print_user_traceback(error)
    assert 'File "my_env.py", line 1' in capsys.readouterr().err
    turning = RuntimeError("again")
    turning.__cause__ = turning
    assert not is_user_error(turning)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exit code 3"),
        (None, "exit code None"),
        (-9, "killed (SIGKILL), perhaps for want of memory"),
        (-11, "killed (SIGSEGV)"),
        (-300, "killed (signal 300)"),
    ],
)
def test_an_exit_code_says_what_ended_a_process(code: int | None, words: str) -> None:
    assert describe_exit(code) == words


def test_an_error_without_words_says_the_line_that_raised_it_whosever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wordless.py").write_text("def step(ready):\n    assert ready\n")
    monkeypatch.syspath_prepend(tmp_path)
    step = load_object("wordless:step", "environment.id")
    with pytest.raises(AssertionError) as caught:
        step(False)
    assert describe_error(caught.value) == (
        f"AssertionError ({tmp_path}/wordless.py:2, in step: assert ready)"
    )
    with pytest.raises(NotImplementedError) as theirs:
        gymnasium.Env().step(0)
    assert describe_error(theirs.value).startswith("NotImplementedError (gymnasium/core.py:")
    assert describe_error(theirs.value).endswith(", in step: raise NotImplementedError)")
    assert describe_error(ValueError()) == "ValueError"


class Inside(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A class whose `metadata` is a property."""


def test_a_class_of_wrappers_may_draw() -> None:
    assert draws(Environment(id=f"{__name__}:Inside"), [__name__])


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("highway-fast-v0", "highway-env"),
        ("FetchReach-v4", "gymnasium-robotics"),
        ("FlappyBird-v0", "flappy-bird-gymnasium"),
    ],
)
def test_an_id_of_a_well_known_package_names_it(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(ConfigurationError) as caught:
        environment_spec(name)
    assert str(caught.value) == (
        f"environment.id = {name!r}: needs {package}, which is not installed: pip install {package}"
    )


def test_a_well_known_package_is_imported_and_registers() -> None:
    assert environment_spec("MinAtar/Breakout-v1").id == "MinAtar/Breakout-v1"
