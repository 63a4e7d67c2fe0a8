"""Between websockets' values and ours."""

from __future__ import annotations

from websockets.datastructures import Headers
from websockets.http11 import Request

from genkidama.plugins.dashboard.http import as_asked, as_response
from genkidama.plugins.dashboard.routes import HttpResponse


def test_a_request_and_its_answer() -> None:
    asked = as_asked(Request("/status?x=1", Headers({"Host": "pi:1", "ACCEPT": "*"})))
    assert (asked.path, asked.headers) == ("/status", {"host": "pi:1", "accept": "*"})
    answer = HttpResponse(404, b"none\n", headers=(("X", "y"),))
    response = as_response(answer, asked)
    assert (response.status_code, response.reason_phrase) == (404, "Not Found")
    assert (response.body, response.headers["X"]) == (b"none\n", "y")
    head = as_response(answer, asked._replace(method="HEAD"))
    assert (head.body, head.headers["Content-Length"]) == (b"", "5")
    assert response.headers["Date"].endswith(" GMT")
