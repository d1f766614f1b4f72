"""A stand-in for an LMS with LTI 1.3: it issues tokens for signed requests, lists a course's members, keeps scores."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

CLIENT_ID = "a-course-on-distributed-training"
TOKEN = "given-for-a-signed-request"
AGS, NRPS = "https://purl.imsglobal.org/spec/lti-ags/scope", "https://purl.imsglobal.org/spec/lti-nrps/scope"
VND = "application/vnd.ims.lis"


@dataclass
class Platform:
    """What the LMS knows, whom it refuses, and whose scores it takes without an answer."""

    public_key: str
    members: list[dict]
    url: str = ""
    columns: list[dict] = field(default_factory=list)
    scores: dict[str, list[dict]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)

    def token(self, body: bytes) -> dict:
        """A token for who signs with the key that this platform knows; raises where anything is otherwise."""
        import jwt  # pyright: ignore[reportMissingImports]  # fetched by the test that uses this

        sent = {name: value for name, (value,) in parse_qs(body.decode()).items()}
        assert sent["grant_type"] == "client_credentials"
        assert sent["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        must = {"require": ["iss", "sub", "aud", "iat", "exp", "jti"]}
        said = jwt.decode(
            sent["client_assertion"], self.public_key, ["RS256"], must, audience=f"{self.url}/token", issuer=CLIENT_ID
        )
        assert said["sub"] == CLIENT_ID
        return {"access_token": f"{TOKEN} {sent['scope']}", "token_type": "Bearer", "expires_in": 3600}

    def answer(self, method: str, path: str, kind: str, scope: str, body: bytes) -> tuple[int, Any]:
        """The status and the answer to a request with a token of this scope."""
        if (method, path) == ("GET", "/members") and f"{NRPS}/contextmembership.readonly" in scope:
            return 200, {"id": f"{self.url}/members", "context": {"id": "5"}, "members": self.members}
        if (method, path) == ("GET", "/columns") and f"{AGS}/lineitem" in scope:
            return 200, self.columns
        if (method, path, kind) == ("POST", "/columns", f"{VND}.v2.lineitem+json") and f"{AGS}/lineitem" in scope:
            self.columns.append({**json.loads(body), "id": f"{self.url}/columns/{len(self.columns)}?type=1"})
            return 201, self.columns[-1]
        if (method, kind) == ("POST", f"{VND}.v1.score+json") and f"{AGS}/score" in scope:
            return self._keep(path, json.loads(body))
        return 403, {}

    def _keep(self, path: str, score: dict) -> tuple[int, Any]:
        """Keep a score that has all that the standard requires, and no older one than there is."""
        column = next(one for one in self.columns if one["id"].replace("?", "/scores?") == self.url + path)
        assert {*score} == {
            "userId", "scoreGiven", "scoreMaximum", "timestamp", "activityProgress", "gradingProgress"
        }  # fmt: skip
        assert (score["activityProgress"], score["gradingProgress"]) == ("Completed", "FullyGraded")
        if score["userId"] in self.unanswered:
            raise ConnectionAbortedError
        kept = self.scores.setdefault(score["userId"], [])
        before = max((one["timestamp"] for one in kept), default="")
        if score["userId"] in self.refused or score["timestamp"] <= before:
            return 409, {}
        assert datetime.fromisoformat(score["timestamp"]).tzinfo and "." in score["timestamp"]
        kept.append({**score, "column": column["tag"]})
        return 200, {"resultUrl": f"{self.url}/results/1"}


@contextmanager
def running(platform: Platform) -> Iterator[Platform]:
    """Run the platform as a server on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            given = self.headers.get("Authorization", "")
            try:
                if self.path == "/token":
                    status, said = 200, platform.token(body)
                elif not given.startswith(f"Bearer {TOKEN} "):
                    status, said = 401, {}
                else:
                    kind = self.headers.get("Content-Type", "")
                    status, said = platform.answer(self.command, self.path, kind, given, body)
            except ConnectionAbortedError:
                self.close_connection = True
                return
            except Exception as error:  # a request that no standard allows
                status, said = 400, {"error": repr(error)}
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        platform.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield platform
        finally:
            server.shutdown()
            thread.join()
