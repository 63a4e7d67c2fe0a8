"""The examples, by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.config.examples import about, example, examples, experiment_file, trained, zoo
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from tests.helpers import ROOT


def test_every_example_has_a_name_and_says_what_it_is() -> None:
    found = examples()
    assert sorted(found.values()) == sorted((ROOT / "examples").glob("*/*.toml"))
    assert {"lunarlander", "lunarlander/a3c", "cartpole", "atari/pong"} <= set(found)
    for file in found.values():
        Experiment.load(file)
        assert 10 < len(about(file)) < 180 and "genkidama train" not in about(file)
        text = file.read_text()  # `init` puts a copy's name into its command
        assert text.count("genkidama train ") + text.count("genkidama search ") == 1, file


@pytest.mark.parametrize("name", ["lunarlander", "lunarlander/thesis", "pong", "a3c"])
def test_a_name_or_its_last_word_is_enough(name: str) -> None:
    assert example(name).stem == name.rpartition("/")[2]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lunarlandr", "lunarlandr: no such file, and no example; did you mean lunarlander"),
        ("xyz", "xyz: no such file, and no example; `genkidama examples` lists them"),
        (
            "sac",
            "sac: no such file, and no example; did you mean lunarlander/sac or mountaincar/sac",
        ),
    ],
)
def test_another_name_is_the_users_mistake(name: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        example(name)
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("# A cart.\n#   genkidama train cart\n# A pole.\nseed = 0\n", "A cart"),
        ("# A cart and\n# a pole v1.2. It\n# falls.\n", "A cart and a pole v1.2"),
        ("seed = 0\n# A cart.\n", ""),
    ],
)
def test_an_example_is_summed_up_by_its_first_sentence(
    tmp_path: Path, text: str, summary: str
) -> None:
    (tmp_path / "cart.toml").write_text(text)
    assert about(tmp_path / "cart.toml") == summary


def test_a_trained_policy_has_a_name_too() -> None:
    assert {"zoo:cartpole", "zoo:lunarlander"} <= set(zoo())
    assert trained("zoo:cartpole") == ROOT / "examples/zoo/cartpole"
    assert not any("zoo" in name for name in examples())
    with pytest.raises(ConfigurationError, match=r"^'zoo:': no trained policy .* zoo:cartpole, "):
        trained("zoo:")


def test_a_file_goes_before_an_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert experiment_file(Path("cartpole")).is_absolute()
    with pytest.raises(
        ConfigurationError, match=r"^mine\.toml: no such file; `genkidama init mine"
    ):
        experiment_file(Path("mine.toml"))
    assert experiment_file(Path("nowhere/mine.toml")) == Path("nowhere/mine.toml")
    Path("cartpole").write_text("")
    assert experiment_file(Path("cartpole")) == Path("cartpole")
