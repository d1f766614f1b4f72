"""Scores sent into an LMS's gradebook over LTI 1.3, by Assignment and Grade Services.

A student is found by the email address that the LMS gives in Names and Role Provisioning Services, because its own ids
are not on the roster. Sources: imsglobal.org/spec/lti-ags/v2p0, imsglobal.org/spec/lti-nrps/v2p0.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests
from pydantic import BaseModel, ConfigDict, ValidationError

from autograder.grading.standing import Standing

try:  # an extra
    from jwcrypto.jwk import JWK  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    from pylti1p3.assignments_grades import AssignmentsGradesService  # pyright: ignore[reportMissingImports]
    from pylti1p3.exception import LtiException, LtiServiceException  # pyright: ignore[reportMissingImports]
    from pylti1p3.grade import Grade  # pyright: ignore[reportMissingImports]
    from pylti1p3.lineitem import LineItem  # pyright: ignore[reportMissingImports]
    from pylti1p3.names_roles import NamesRolesProvisioningService  # pyright: ignore[reportMissingImports]
    from pylti1p3.registration import Registration  # pyright: ignore[reportMissingImports]
    from pylti1p3.service_connector import ServiceConnector  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:
    raise ValueError("Scores are sent by PyLTI1p3, which is not installed: pip install -e '.[lti]'") from None

SETTINGS = "lti.toml"
_AGS = "https://purl.imsglobal.org/spec/lti-ags/scope"
_SCOPES = [f"{_AGS}/lineitem", f"{_AGS}/score"]
_TIMEOUT_S = 30
_MAX_UNANSWERED = 3  # requests in a row


class Platform(BaseModel):
    """How an LMS and this course identify each other, as configured in `lti.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_id: str
    key: Path  # of the private key that signs requests, in PEM; relative to the file
    token_url: str
    lineitems_url: str
    members_url: str


def read_platform(file: Path) -> Platform:
    """Read the settings in a file. Raises: ValueError."""
    try:
        platform = Platform.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    return platform.model_copy(update={"key": file.parent / platform.key})


def send(
    rows: Iterable[Standing], platform: Platform, names: Mapping[str, str] | None = None
) -> list[tuple[Standing, str]]:
    """Send every final score; return the rest, each with the reason.

    An assignment's column is known by its name here, as the column's tag, and created if missing; `names` gives
    it another title.

    Raises:
        ValueError: the key cannot be read, or the LMS gives no token, no members or no column.
    """
    try:
        lms = _Lms(platform)
        return [(row, reason) for row in rows if (reason := lms.try_send(row, names or {}))]
    except (LtiException, OSError, ValueError) as error:  # requests' own errors are OSErrors
        raise ValueError(f"The scores cannot be sent: {error}") from error


class _LtiSession(requests.Session):
    """A session whose requests time out."""

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        return super().request(*args, **{"timeout": _TIMEOUT_S, **kwargs})


class _Lms:
    """An LMS with the members of a course and the columns of its gradebook."""

    def __init__(self, platform: Platform):
        connector = ServiceConnector(_registration(platform), _LtiSession())
        urls = {"scope": _SCOPES, "lineitems": platform.lineitems_url}
        self._grades = AssignmentsGradesService(connector, urls)
        people = NamesRolesProvisioningService(connector, {"context_memberships_url": platform.members_url})
        self._user_ids = _by_email(people.get_members())
        self._columns: dict[str, Any] = {}
        self._num_unanswered = 0  # one after another

    def try_send(self, row: Standing, names: Mapping[str, str]) -> str:
        """Like `send`, but return a reason if the LMS does not answer, and stop asking after several failures."""
        if self._num_unanswered == _MAX_UNANSWERED:
            return "not sent: the LMS no longer answers"
        try:
            reason = self.send(row, names)
        except OSError as error:  # requests' own errors are
            self._num_unanswered += 1
            return f"the LMS did not answer: {error}"
        self._num_unanswered = 0
        return reason

    def send(self, row: Standing, names: Mapping[str, str]) -> str:
        """Send a score if it is final; return why it was not sent, or an empty text."""
        if row.submitted_score is None:
            return row.state.exported
        user_id = self._user_ids.get(row.email.lower())
        if not user_id:
            return f"the LMS lists no user, or several, with the address {row.email or '(none)'}"
        try:
            self._grades.put_grade(_grade(row, row.submitted_score, user_id), self._column(row, names))
        except LtiServiceException as error:
            return f"the LMS answered {error.response.status_code}"
        return ""

    def _column(self, row: Standing, names: Mapping[str, str]) -> Any:
        if row.assignment not in self._columns:
            column = LineItem().set_tag(row.assignment).set_score_maximum(row.max_score)
            column.set_label(names.get(row.assignment, row.assignment))
            self._columns[row.assignment] = self._grades.find_or_create_lineitem(column)
        return self._columns[row.assignment]


def _grade(row: Standing, score: float, user_id: str) -> Any:
    grade = Grade().set_score_given(score).set_score_maximum(row.max_score).set_user_id(user_id)
    grade.set_timestamp(datetime.now(UTC).isoformat(timespec="milliseconds"))
    return grade.set_activity_progress("Completed").set_grading_progress("FullyGraded")


def _registration(platform: Platform) -> Any:
    key = platform.key.read_bytes()
    public = JWK.from_pem(key).export_to_pem()
    registration = Registration().set_client_id(platform.client_id)
    registration.set_auth_token_url(platform.token_url)
    return registration.set_tool_private_key(key.decode()).set_tool_public_key(public.decode())


def _by_email(members: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The LMS's ids of users by their address; an address that several users share is left out."""
    shown = [member for member in members if member.get("email") and member.get("user_id")]
    known = [(str(member["email"]).lower(), str(member["user_id"])) for member in shown]
    count = Counter(email for email, _ in known)
    return {email: user_id for email, user_id in known if count[email] == 1}
