"""Between websockets' requests and responses, and what `answers.py` takes and gives."""

from __future__ import annotations

import time
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from genkidama.plugins.dashboard.routes import HttpRequest, HttpResponse

__all__ = ["as_asked", "as_response"]


def as_asked(request: Request) -> HttpRequest:
    """A request. Of a header that stands there twice the last counts."""
    headers = {name.lower(): value for name, value in request.headers.raw_items()}
    return HttpRequest(request.path, headers, getattr(request, "method", "GET"))


def as_response(found: HttpResponse, asked: HttpRequest) -> Response:
    """An answer. `HEAD` gets its head."""
    status = HTTPStatus(found.status)
    headers = Headers({"Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())})
    headers["Connection"] = "close"
    for name, value in found.all_headers:
        headers[name] = value
    body = b"" if asked.method == "HEAD" else found.body
    return Response(status, status.phrase, headers, body)
