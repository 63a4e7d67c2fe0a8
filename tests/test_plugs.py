from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError
from genkidama.experiment import Environment, Experiment
from genkidama.plugs import check_environment, is_plug, load_plug


@pytest.mark.parametrize(
    ("name", "plug"),
    [("package.module:Name", True), ("LunarLander-v3", False), ("ALE/Pong-v5", False), ("ale_py:ALE/Pong-v5", False), ("", False)],
)
def test_an_import_string_has_a_colon(name: str, plug: bool) -> None:
    assert is_plug(name) is plug


def test_what_is_named_is_loaded() -> None:
    assert load_plug("collections:OrderedDict", "network.name") is OrderedDict


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plug_raises.py").write_text("raise RuntimeError('no luck')\n")
    (tmp_path / "plug_wrong.py").write_text("def broken(:\n")
    (tmp_path / "plug_needs.py").write_text("import plug_absent\n")
    (tmp_path / "plug_fine.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("plug_absent:X", "cannot import 'plug_absent': No module named 'plug_absent'; is it installed or on PYTHONPATH?"),
        ("plug_needs:X", "cannot import 'plug_needs': No module named 'plug_absent'; is it installed or on PYTHONPATH?"),
        ("plug_raises:X", "importing 'plug_raises' fails: RuntimeError: no luck"),
        ("plug_wrong:X", "importing 'plug_wrong' fails: SyntaxError: invalid syntax (plug_wrong.py, line 1)"),
        ("plug_fine:question", "module 'plug_fine' has no 'question'"),
        ("plug_fine:", "module 'plug_fine' has no ''"),
        (":X", "importing '' fails: ValueError: Empty module name"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(name: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_plug(name, "network.name")
    assert str(caught.value) == f"network.name = {name!r}: {sentence}"


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("name", ["LunarLander-v3", "CartPole-v1", "plug_fine:answer"])
def test_an_environment_that_exists_is_accepted(name: str) -> None:
    check_environment(Experiment(environment=Environment(id=name)))


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("MoonLander-v3", "environment.id = 'MoonLander-v3': Gymnasium does not know it: "),
        ("LunarLander-v99", "environment.id = 'LunarLander-v99': Gymnasium does not know it: "),
        ("not an id", "environment.id = 'not an id': Gymnasium does not know it: "),
        ("plug_absent:Some/Thing-v0", "environment.id = 'plug_absent:Some/Thing-v0': "),
        ("plug_fine:make", "environment.id = 'plug_fine:make': module 'plug_fine' has no 'make'"),
    ],
)
def test_an_environment_that_does_not_exist_is_told_in_one_line(name: str, beginning: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_environment(Experiment(environment=Environment(id=name)))
    assert str(caught.value).startswith(beginning)
    assert len(str(caught.value).splitlines()) == 1
