"""Names in an experiment: of the user's classes, and of Gymnasium's environments; and errors of the
user's code in words: the exception, and the line that raised it.

A user's class is named by an import string `"package.module:Name"`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import os
import re
import signal
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from genkidama._version import pip_install
from genkidama.config.allowlist import import_string
from genkidama.config.decoding import name_of_script
from genkidama.config.plugin import find
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.runtime.script import cells, import_module, where

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment
    from genkidama.config.sections import Environment, Wrapper

_INSTALL_ATARI = pip_install("atari")

#: Well-known packages that register environments when they are imported: a regular expression of
#: how their ids begin, the module, and the package.
_PROVIDERS = (
    (r"MiniGrid-|BabyAI-", "minigrid", "minigrid"),
    (
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit"
        r"|lane-keeping|two-way|u-turn)-",
        "highway_env",
        "highway-env",
    ),
    (
        r"Fetch|Hand(Manipulate|Reach)|Adroit|AntMaze_|PointMaze_|FrankaKitchen",
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
    (r"FlappyBird-", "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    (r"MinAtar/", "minatar.gym", "minatar"),
)

#: Wrappers of Gymnasium's that need OpenCV, which Gymnasium itself does not.
_NEED_OPENCV = ("AtariPreprocessing", "ResizeObservation")


def is_import_string(name: str) -> bool:
    """True if `name` is an import string rather than the name of something built in.

    `"module:Name-v0"` is Gymnasium's: the module registers the id.
    """
    named = import_string(name)
    return named is not None and named.name.isidentifier()


def load_object(name: str, key: str) -> Any:
    """Imports the object of `"package.module:Name"`, installed or on `sys.path`.

    An error names its key, the setting that holds it. So does that of a thing that no other process
    could import.
    """
    named = import_string(name)
    if named is None:
        raise ConfigurationError(f"{key} = {name!r}: is no import string; expected 'module:Name'")
    module_name, attribute = named
    if module_name == "__main__" and not cells():
        raise of_a_notebook(key, name, attribute)
    module = _import(module_name, name, key)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigurationError(
            f"{key} = {name!r}: module {module_name!r} has no {attribute!r}{where(module)}"
        ) from None


def of_a_notebook(key: str, value: object, name: str) -> ConfigurationError:
    """The error of a thing of this program under a name that other processes cannot import."""
    main = sys.modules["__main__"]
    if cells() or (getattr(main, "__spec__", None) is None and name_of_script()):
        way = f"give {name} itself, not its name in quotes"
    else:
        way = f"write it into a file, as my_module.py, and name it 'my_module:{name}'"
    return ConfigurationError(
        f"{key} = {value!r}: no other process can import by this name what a script or a notebook "
        f"defines; {way}"
    )


def _import(module_name: str, name: str, key: str) -> ModuleType:
    try:
        return import_module(module_name)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        # Packages that an extra of the same name installs.
        known = missing in ("torch", "minatar", "envpool")
        way = pip_install(missing) if known else "is it installed or on PYTHONPATH?"
        raise ConfigurationError(
            f"{key} = {name!r}: cannot import {module_name!r}: {error}; {way}"
        ) from error
    except Exception as error:  # a user's module may raise anything, and the user can mend it
        raise ConfigurationError(
            f"{key} = {name!r}: importing {module_name!r} fails: {describe_error(error)}"
        ) from error


def load_wrapper(wrapper: Wrapper, key: str) -> Any:
    """The class that one of `environment.wrappers` names; errors name its key."""
    name = wrapper.name
    gymnasium = importlib.import_module("gymnasium")
    kind = load_object(name, key) if is_import_string(name) else _own_wrapper(name, key)
    if not isinstance(kind, type) or not issubclass(kind, gymnasium.Wrapper):
        raise ConfigurationError(
            f"{key} = {name!r}: is no subclass of gymnasium.Wrapper; name one as 'module:Class'"
        )
    if name in _NEED_OPENCV and importlib.util.find_spec("cv2") is None:
        raise ConfigurationError(
            f"{key} = {name!r}: needs OpenCV, which is not installed: {_INSTALL_ATARI}"
        )
    signature = inspect.signature(kind)
    try:
        signature.bind(None, **wrapper.options)  # the environment comes first
    except TypeError as error:
        takes = ", ".join(list(signature.parameters)[1:]) or "none"
        raise ConfigurationError(
            f"{key} = {name!r}: options = {wrapper.options!r}: {error}; its options: {takes}"
        ) from None
    return kind


def _own_wrapper(name: str, key: str) -> Any:
    wrappers = importlib.import_module("gymnasium.wrappers")
    known = sorted(set(wrappers.__all__) - {"vector"})
    if name not in known:
        import difflib  # for a mistake alone

        hint = f"it has {', '.join(known)}; one of your own is 'module:Class'"
        if near := difflib.get_close_matches(name, known, 3):
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        raise ConfigurationError(f"{key} = {name!r}: no wrapper of Gymnasium's; {hint}")
    try:
        return getattr(wrappers, name)
    except Exception as error:  # some are imported now, and need packages that Gymnasium does not
        raise ConfigurationError(f"{key} = {name!r}: cannot be imported: {error}") from error


def environment_spec(name: str) -> Any:
    """Gymnasium's specification of an id: `"LunarLander-v3"`, `"ALE/Pong-v5"`, `"module:Name-v0"`.

    The module is imported, and so is the well-known package of an id that Gymnasium does not know.
    The Arcade Learning Environment is made known to Gymnasium here, without its banner.
    """
    module_name, known = import_string(name) or ("", name)
    if ":" in known:
        raise ConfigurationError(
            f"environment.id = {name!r}: expected an id of Gymnasium's, or 'module:Name-v0'"
        )
    if known.startswith("ALE/"):
        try:
            ale_py = importlib.import_module("ale_py")  # it registers its environments then
        except ImportError as error:
            problem = f"needs the Arcade Learning Environment: {error}: {_INSTALL_ATARI}"
            raise ConfigurationError(f"environment.id = {name!r}: {problem}") from error
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    if module_name:
        _import(module_name, name, "environment.id")
    gymnasium = importlib.import_module("gymnasium")
    try:
        if known not in gymnasium.registry:
            _import_provider(known, name)
        return gymnasium.spec(known)
    except gymnasium.error.Error as error:
        missing = isinstance(
            error, gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound
        )
        way = f" If a package registers it, name its module: 'package:{known}'"
        raise ConfigurationError(
            f"environment.id = {name!r}: Gymnasium does not know it: {error}"
            f"{way if missing and not module_name else ''}"
        ) from None


def is_gymnasiums(settings: Environment) -> bool:
    """True if an environment is one of Gymnasium's own or of ALE's, without a user's wrappers."""
    if settings.prefix or is_import_string(settings.id):
        return False
    made_by = str(environment_spec(settings.id).entry_point)
    wrapped = any(import_string(wrapper.name) for wrapper in settings.wrappers)
    return made_by.startswith(("gymnasium.envs.", "ale_py.")) and not wrapped


def _import_provider(known: str, name: str) -> None:
    """Imports the well-known package that registers an id, if there is one."""
    for ids, module, package in _PROVIDERS:
        if not re.match(ids, known):
            continue
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise ConfigurationError(
                f"environment.id = {name!r}: needs {package}, which is not installed: "
                f"pip install {package}"
            )
        register = getattr(_import(module, name, "environment.id"), "register_envs", None)
        if register is not None:
            register()


def draws(settings: Environment, allow: Iterable[str] = ()) -> bool:
    """False if the environment is a class of the user's that is known to draw no pictures.

    Args:
        allow: modules that may be imported.
    """
    named = import_string(settings.id)
    if named is None or not is_import_string(settings.id) or named.module not in allow:
        return True
    with suppress(ConfigurationError):
        made_by = load_object(settings.id, "environment.id")
        if isinstance(made_by, type):
            metadata = getattr(made_by, "metadata", {})
            if isinstance(metadata, dict):  # a wrapper's are those of what is inside it
                modes = metadata.get("render_modes", ())
                return "rgb_array" in modes or "human" in modes
    return True


def vectorized_spec(settings: Environment) -> Any:
    """`environment_spec` of an environment that has a vectorized form of its own."""
    spec = None if is_import_string(settings.id) else environment_spec(settings.id)
    if spec is None or spec.vector_entry_point is None:
        raise ConfigurationError(
            f"environment.vectorized = True: {settings.id!r} is not registered with a vectorized "
            "form of its own; set it to false"
        )
    return spec


@contextmanager
def _others_silent() -> Iterator[None]:
    """Keeps what packages print and warn of from standing before our words on a terminal."""
    nowhere = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        yield


@_others_silent()
def check_environment(experiment: Experiment) -> None:
    """Checks that environment and wrappers exist, before any process starts. Imports no torch."""
    settings = experiment.environment
    if settings.prefix:
        find("environments", settings.prefix).check(settings)
        return
    if is_import_string(settings.id):
        load_object(settings.id, "environment.id")
    else:
        made_by = environment_spec(settings.id).entry_point
        module, name = import_string(str(made_by)) or ("", "")
        if getattr(made_by, "__module__", module) == "__main__":
            name = getattr(made_by, "__name__", name)
            raise of_a_notebook("environment.id", settings.id, name)
    if settings.vectorized and not is_import_string(settings.id):
        vectorized_spec(settings)
    for position, wrapper in enumerate(settings.wrappers):
        load_wrapper(wrapper, f"environment.wrappers[{position}]")


#: An error's own text is cut after this many characters, so that its place is not.
_LONGEST = 500

#: Code below these folders is no user's.
_FOLDERS = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
_OTHERS = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (os.path.dirname(os.path.dirname(__file__)), *_FOLDERS)
)


def describe_error(error: BaseException) -> str:
    """As `KeyError: 'my bug' (my_env.py:12, in step)`; without a place if no user's code raised.

    An error without words says the line that raised it, whosever that is, as `AssertionError
    (their_env.py:12, in step: assert ready)`.
    """
    said = str(error.msg if isinstance(error, SyntaxError) else error)
    text = " ".join(f"{type(error).__name__}: {said}".split())
    if not said.strip():
        text = type(error).__name__
        if frames := traceback.extract_tb(error.__traceback__):
            return f"{text} ({_at(frames[-1])}{f': {line}' if (line := frames[-1].line) else ''})"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} …"
    place = _place(error)
    return f"{text} ({place})" if place else text


def is_user_error(error: BaseException) -> bool:
    """True if a user's own code has raised it, or its cause."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return any(map(_place, causes))


def print_user_traceback(error: BaseException) -> None:
    """Writes the whole traceback to standard error, if a user's own code has a part in it."""
    if is_user_error(error):
        traceback.print_exception(error)


@contextmanager
def user_errors(problem: str) -> Iterator[None]:
    """Turns what a user's own code raises, which may be anything, into a `ConfigurationError` that
    begins with this problem. One that is raised is left as it is."""
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{problem}: {describe_error(error)}") from error


def describe_exit(code: int | None) -> str:
    """The cause of an exit code, in words: `"exit code 3"`, or `"killed (SIGSEGV)"`."""
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"killed ({name}), perhaps for want of memory"
    return f"killed ({name})"


def _place(error: BaseException) -> str:
    """The innermost line of a user's own code; what we raise says itself what is wrong."""
    if isinstance(error, GenkidamaError):
        return ""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = os.path.realpath(frame.filename)
        if not path.startswith(_OTHERS) and not frame.filename.startswith("<"):
            return _at(frame)
    return ""


def _at(frame: traceback.FrameSummary) -> str:
    """As `my_env.py:12, in step`."""
    inside = "" if frame.name == "<module>" else f", in {frame.name}"
    return f"{_short(frame.filename)}:{frame.lineno}{inside}"


def _short(path: str) -> str:
    """The path below the folder of the installed packages, or below the current one, or whole."""
    found = os.path.realpath(path)
    for folder in (*map(sysconfig.get_path, ("purelib", "platlib")), os.getcwd()):
        found = found.removeprefix(os.path.realpath(folder) + os.sep)
    return found
