"""A small server of the Hub's API: repositories, commits with files and large files, downloads."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_testing"


class LocalHub(ThreadingHTTPServer):
    """Keeps all in memory. What writes needs `TOKEN`; private repositories need it for reading."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        #: By repository, the files of its branch `main`.
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        #: By SHA-256, what was uploaded as a large file.
        self.objects: dict[str, bytes] = {}
        self.large: set[str] = set()
        #: Refuses large files.
        self.full = False

    def commit_of(self, name: str) -> str:
        files = sorted(self.repositories[name].items())
        return hashlib.sha1(repr(files).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LocalHub

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for key, text in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _missing(self) -> None:
        self._answer({"error": "?"}, 404, {"X-Error-Code": "RepoNotFound"})

    @property
    def _path(self) -> str:
        return unquote(urlsplit(self.path).path)

    @property
    def _known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _files(self, name: str) -> dict[str, bytes] | None:
        seen = name not in self.server.private or self._known
        return self.server.repositories.get(name) if seen else None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", self._path):
            if (files := self._files(found[1])) is None:
                return self._missing()
            return self._answer([self._entry(path, data) for path, data in files.items()])
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.+)?", self._path):
            if (files := self._files(found[1])) is None:
                return self._missing()
            siblings = [{"rfilename": path} for path in files]
            return self._answer(
                {"id": found[1], "sha": hub.commit_of(found[1]), "siblings": siblings}
            )
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self._path):
            data = (self._files(found[1]) or {}).get(found[2])
            if data is None:
                return self._missing()
            tags = {"ETag": f'"{self._oid(data)}"', "X-Repo-Commit": hub.commit_of(found[1])}
            return self._answer(data, headers=tags)
        return self._missing()

    def _oid(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if digest in self.server.large:
            return digest
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def _entry(self, path: str, data: bytes) -> dict[str, Any]:
        oid = self._oid(data)
        large = {"lfs": {"oid": oid, "size": len(data), "pointerSize": 130}}
        entry = {"type": "file", "path": path, "size": len(data), "oid": oid}
        return entry | (large if oid in self.server.large else {})

    def do_PUT(self) -> None:
        body = self._body()
        digest = self._path.rpartition("/")[2]
        if self.server.full:
            return self._answer({"error": "no room"}, 507)
        assert hashlib.sha256(body).hexdigest() == digest
        self.server.objects[digest] = body
        return self._answer({})

    def do_POST(self) -> None:
        hub, body = self.server, self._body()
        if self._path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if not self._known:
            return self._answer({"error": "Invalid username or password."}, 401)
        if self._path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in hub.repositories:
                return self._answer({"url": f"{hub.url}/{name}"}, 409)
            hub.repositories[name] = {".gitattributes": b"*.safetensors filter=lfs\n"}
            hub.private |= {name} if asked.get("visibility") == "private" else set()
            return self._answer({"url": f"{hub.url}/{name}"})
        if re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/main", self._path):
            answers = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(("tensors", "mp4")) else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self._answer({"files": answers})
        if self._path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**asked, "actions": {"upload": {"href": f"{hub.url}/lfs/{asked['oid']}"}}}
                for asked in json.loads(body)["objects"]
            ]
            return self._answer({"transfer": "basic", "objects": objects})
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", self._path):
            self._commit(hub.repositories[found[1]], [json.loads(one) for one in body.splitlines()])
            commit = hub.commit_of(found[1])
            return self._answer({"commitUrl": f"{hub.url}/{found[1]}", "commitOid": commit})
        return self._missing()

    def _commit(self, files: dict[str, bytes], operations: list[dict[str, Any]]) -> None:
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
                self.server.large.add(value["oid"])
            elif operation["key"] == "deletedFile":
                files.pop(value["path"], None)


@contextmanager
def serving() -> Iterator[LocalHub]:
    """The server, in a thread."""
    hub = LocalHub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
