"""A search's study opens in optuna-dashboard as it is."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import optuna
import optuna_dashboard
import pytest

from tests.plugins.hypertrick.studies import SPACE, make_study, url_of


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def dashboard(url: str) -> Iterator[str]:
    """The dashboard on a free port of this machine; gives its address."""
    storage = optuna.storages.RDBStorage(url)
    server = make_server("127.0.0.1", 0, optuna_dashboard.wsgi(storage), handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        storage.remove_session()
        storage.engine.dispose()


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, optuna.Study]:
    folder: Path = tmp_path_factory.mktemp("search")
    return url_of(folder), make_study(
        folder, trials=12, phases=3, nodes=2, failing=(2,), not_a_number=(3,), until=700
    )


def test_the_study_its_trials_and_their_curves_are_there(search: tuple[str, optuna.Study]) -> None:
    url, study = search
    with dashboard(url) as address:

        def get(path: str) -> Any:
            with urllib.request.urlopen(address + path, timeout=30) as answer:
                assert answer.status == 200
                return json.load(answer)

        (listed,) = get("/api/studies")["study_summaries"]
        assert (listed["study_name"], listed["directions"]) == ("search", ["maximize"])
        detail = get(f"/api/studies/{listed['study_id']}")
        importances = get(f"/api/studies/{listed['study_id']}/param_importances")
        with urllib.request.urlopen(f"{address}/dashboard", timeout=30) as page:
            assert page.status == 200 and b"<html" in page.read().lower()

    assert detail["name"] == "search" and detail["has_intermediate_values"]
    assert {parameter["name"] for parameter in detail["union_search_space"]} == set(SPACE)
    assert [best["number"] for best in detail["best_trials"]] == [study.best_trial.number]
    shown = {trial["number"]: trial for trial in detail["trials"]}
    states = set()
    for trial in study.trials:
        there = shown.pop(trial.number)
        states.add(there["state"])
        assert there["state"] == trial.state.name.capitalize()
        assert {
            parameter["name"]: parameter["param_external_value"] for parameter in there["params"]
        } == {k: str(v) for k, v in trial.params.items()}
        curve = {point["step"]: str(point["value"]) for point in there["intermediate_values"]}
        assert curve == {step: str(value) for step, value in trial.intermediate_values.items()}
        assert {"phases", "checkpoint"} <= {
            attribute["key"] for attribute in there["user_attrs"]
        } or not trial.intermediate_values
    assert not shown and states == {"Complete", "Pruned", "Fail", "Running"}
    assert {entry["name"] for entry in importances["param_importances"][0]} == set(SPACE)
