"""Where a study lies: a database that a search opens to write, and a report to read.

Laws of this file:
- Errors name the database as people may see it: without a password.
- Reading makes no file.
"""

from __future__ import annotations

from pathlib import Path

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs.directory import STUDY

try:
    import optuna
    from sqlalchemy.engine import make_url
    from sqlalchemy.event import listen
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
except ImportError as error:
    raise ConfigurationError(
        f"a search needs Optuna ({error}); install it: pip install 'genkidama[search]'"
    ) from None

__all__ = [
    "first_line",
    "open_database",
    "open_study",
    "storage_url",
    "unreachable",
    "without_password",
]

#: How long SQLite waits for another writer, a dashboard for instance.
_SQLITE_SECONDS = 60.0

_POSTGRESQL = "for PostgreSQL: pip install 'genkidama[postgresql]'"


def storage_url(storage: str, out: Path) -> str:
    """The study's storage: as the experiment says, or a SQLite file in the run's directory."""
    return storage or f"sqlite:///{out.absolute() / STUDY}"


def without_password(url: str) -> str:
    """A storage's URL as people may see it."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return url


def open_database(url: str) -> optuna.storages.RDBStorage:
    """The database at `url`, to write to it. It is made if it is a SQLite file that does not exist.

    Raises:
        ConfigurationError: no such database or driver.
        EnvironmentFailure: it cannot be reached.
    """
    shown, sqlite = without_password(url), url.startswith("sqlite")
    try:
        storage = optuna.storages.RDBStorage(
            url, engine_kwargs={"connect_args": {"timeout": _SQLITE_SECONDS}} if sqlite else {}
        )
        if sqlite:
            _hurry(storage)
        return storage
    except ImportError as error:
        raise ConfigurationError(
            f"search.storage = {shown!r}: {first_line(error)}; "
            f"{_POSTGRESQL} and postgresql+psycopg://…"
        ) from None
    except (ValueError, ArgumentError) as error:
        raise ConfigurationError(f"search.storage = {shown!r}: {first_line(error)}") from None
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise unreachable(url, error) from None


def _hurry(storage: optuna.storages.RDBStorage) -> None:
    """Makes a write to SQLite cost a tenth. Readers, a dashboard for instance, block nobody then.

    What a process has written survives its end. After a power cut the last reports may be missing,
    but the file is whole.
    """
    listen(
        storage.engine,
        "connect",
        lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"),
    )
    storage.engine.dispose()  # connections that were opened before
    with storage.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")


def open_study(url: str, name: str) -> optuna.Study:
    """The study `name` in the storage `url`, as `sqlite:///runs/search/study.db`, to read it.

    Raises:
        ConfigurationError: the database's driver is not installed, or there is no such study.
        EnvironmentFailure: the database cannot be read.
    """
    file = url.removeprefix("sqlite:///")
    if file != url and not Path(file).exists():  # opening it would make an empty one
        raise ConfigurationError(f"study {name!r}: there is no file {file}; has the search begun?")
    shown = without_password(url)
    try:
        return optuna.load_study(study_name=name, storage=url)
    except KeyError:
        known = ", ".join(optuna.get_all_study_names(url)) or "none"
        raise ConfigurationError(f"study {name!r} is not in {shown}; it holds: {known}") from None
    except ImportError as error:
        raise ConfigurationError(
            f"study {name!r} in {shown}: {first_line(error)}; {_POSTGRESQL}"
        ) from None
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        raise EnvironmentFailure(
            f"study {name!r} in {shown}: cannot be read: {str(error).splitlines()[0]}"
        ) from None


def unreachable(url: str, error: Exception) -> EnvironmentFailure:
    """The error to raise if the database cannot be opened."""
    return EnvironmentFailure(
        f"search.storage = {without_password(url)!r}: "
        f"the study cannot be opened: {first_line(error)}"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error, or of the one that it was made of."""
    error = error.__cause__ or error
    return next(iter(str(error).splitlines()), "") or type(error).__name__
