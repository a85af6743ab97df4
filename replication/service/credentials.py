"""The users of the store as SASL wants them: passwords and verifiers of those who log in."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from logweir.errors import RequestError
from logweir.replication.logs import get_logger
from logweir.replication.service.sasl import MECHANISMS
from logweir.replication.service.shared import Shared
from logweir.replication.service.verifiers import (
    ScramVerifier,
    change,
    find_cram,
    find_scram,
    keep,
    verifier,
)
from logweir.store.commit.jobs import Job
from logweir.store.schema.access import GUEST_ID, User

_log = get_logger("logweir.replication")


class StoreCredentials:
    """Users of the store. What needs more than the check of a password is offered once everybody
    who has a password has a verifier for it."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def _kept(self, user: str) -> str:
        try:
            return self._shared.user(user).kept
        except RequestError:
            return ""

    def users(self) -> list[User]:
        """Those who have a password."""
        everybody = self._shared.directory.users()
        return [user for user in everybody if user.kept and user.id != GUEST_ID]

    def mechanisms(self) -> Sequence[str]:
        log, users = self._shared.log, self.users()
        whole = users and all(find_cram(log, user.name, user.kept) for user in users)
        return MECHANISMS if whole else ("PLAIN",)

    def check_password(self, user: str, password: str) -> bool:
        kept = self._kept(user)
        if not kept or not hmac.compare_digest(kept, verifier(password)):
            return False
        log = self._shared.log
        if find_cram(log, user, kept) is None and not self._shared.options.read_only:
            requests = keep(log, user, password, kept)
            self._shared.submit(Job(lambda group: change(group, requests)), _report)
        return True

    def cram(self, user: str) -> bytes | None:
        kept = self._kept(user)
        return find_cram(self._shared.log, user, kept) if kept else None

    def scram(self, user: str, mechanism: str) -> ScramVerifier | None:
        kept = self._kept(user)
        return find_scram(self._shared.log, user, mechanism, kept) if kept else None


def _report(job: Job) -> None:
    if job.error is not None:
        _log.warning("login.verifier_not_kept", error=str(job.error))
