"""What an operator does to a store that is served, or to a folder that is not: one set of calls.

A server answers them to CALL under the names in `Administration.calls`; the commands of the program
make them on a folder themselves. Arguments and answers are plain values, which MsgPack can carry.

==========================  =======================================================================
call                        answer
==========================  =======================================================================
`logweir.snapshot`          `path` of the newest snapshot, and whether it was `already_there`
`logweir.verify`            the report of `logweir verify` on the folder, while it is served
`logweir.followers`         for whom logs are kept: `name`, `vclock`, `unread_bytes`
`logweir.release`           name: no logs are kept for that follower any more
`logweir.users`             `id`, `name`, `type`, `password` (whether there is one), `grants`
`logweir.add_user`          name, password or nil: its id
`logweir.add_role`          name: its id
`logweir.change_password`   name, password
`logweir.drop_user`         name: the user or role is gone
`logweir.grant`,            name, bits of rights, kind of object, its name: as `users.grant`,
`logweir.revoke`            `users.revoke`
`logweir.topics`            `topic`, `config`, `partitions`: `partition`, `first`, `last`
`logweir.create_topic`      name, partitions, text of its configuration
`logweir.configure_topic`   name, text
`logweir.delete_topic`      name: the topic and its messages are gone
==========================  =======================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from logweir.errors import ErrorCode, RequestError
from logweir.recovery.examine import examine
from logweir.replication.service import users
from logweir.replication.service.access import Directory, read_directory
from logweir.replication.service.protocol import PREFIX
from logweir.replication.service.verifiers import verifier
from logweir.replication.topic.spaces import (
    TopicDef,
    create_topic,
    delete_topic,
    last_bundle,
    oldest_bundle,
    set_config,
    topics_of,
)
from logweir.store.log import Log
from logweir.store.recover.checkpoint import logs_before, read_followers
from logweir.store.schema.access import Privilege
from logweir.wal.directory import scan_directory
from logweir.wal.lease import leased
from logweir.wal.vclock import vclock_json


class Administration:
    """The calls on one open store. Each runs in a thread of its own.

    `forget`: makes a server forget a follower, before its logs are given up; `refused`: why
    nothing may be changed here, "" if it may.
    """

    def __init__(
        self,
        log: Log,
        *,
        forget: Callable[[str], None] = lambda name: None,
        refused: Callable[[], str] = lambda: "",
    ) -> None:
        self._log = log
        self._forget = forget
        self._refused = refused

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """All of them, by name."""
        looks = (self.snapshot, self.verify, self.followers, self.users, self.topics, self.release)
        changes = (
            *(self.add_user, self.add_role, self.change_password, self.drop_user),
            *(self.grant, self.revoke),
            *(self.create_topic, self.configure_topic, self.delete_topic),
        )
        found: dict[str, Callable[..., Any]] = {PREFIX + one.__name__: one for one in looks}
        return found | {PREFIX + one.__name__: self._checked(one) for one in changes}

    def _checked(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if reason := self._refused():
                raise RequestError(ErrorCode.READONLY, reason)
            return change(*arguments)

        return call

    # --- the folder -------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """A snapshot of now."""
        before = scan_directory(self._log.path).newest_snap()
        path = self._log.snapshot()
        already = before is not None and before.path.name == path.name
        return {"path": str(path), "already_there": already}

    def verify(self) -> dict[str, Any]:
        """The report on the folder as it is, as the JSON of `logweir verify`."""
        with leased(self._log.path):
            return examine(self._log.path).to_json()

    def followers(self) -> list[dict[str, Any]]:
        """For whom the logs are kept."""
        return followers_of(self._log.path)

    def release(self, name: str) -> None:
        """Give up the logs that are kept for a follower; it need not be known.

        One that is connected has them kept again from its next acknowledgement on.
        """
        self._forget(name)
        self._log.release(name)

    # --- users ------------------------------------------------------------------------------------

    def users(self) -> list[dict[str, Any]]:
        """All users and roles with what was granted to each, by id."""
        directory = read_directory(self._log)
        names = {user.id: user.name for user in directory.users()}
        return [
            {
                "id": user.id,
                "name": user.name,
                "type": "role" if user.is_role else "user",
                # The row of `guest` holds the verifier of an empty one.
                "password": user.kept not in ("", verifier("")),
                "grants": self._grants(directory, user.id, names),
            }
            for user in directory.users()
        ]

    def _grants(
        self, directory: Directory, user_id: int, names: Mapping[int, str]
    ) -> list[dict[str, Any]]:
        schema = self._log.schema
        found = []
        for one in directory.grants(user_id):
            name = str(one.object_id)
            if one.object_type == "role":
                name = names.get(int(one.object_id), name)
            elif one.object_type == "space" and (space := schema.get(one.object_id)) is not None:
                name = space.name
            rights = [word for word, bit in users.PRIVILEGES.items() if one.bits & bit]
            found.append(
                {
                    "on": one.object_type,
                    "object": one.object_id,
                    "object_name": name,
                    "rights": rights,
                }
            )
        return found

    def add_user(self, name: str, password: str | None = None) -> int:
        """Make a user. Returns its id."""
        return users.add_user(self._log, name, password=password)

    def add_role(self, name: str) -> int:
        """Make a role. Returns its id."""
        return users.add_user(self._log, name, role=True)

    def change_password(self, name: str, password: str) -> None:
        """Give a user another password."""
        users.change_password(self._log, name, password)

    def drop_user(self, name: str) -> None:
        """Remove a user or role."""
        users.drop_user(self._log, name)

    def grant(self, name: str, bits: int, kind: str, object_name: str) -> None:
        """Give more rights."""
        users.grant(self._log, name, Privilege(bits), users.Target(kind, object_name))

    def revoke(self, name: str, bits: int, kind: str, object_name: str) -> None:
        """Take rights back."""
        users.revoke(self._log, name, Privilege(bits), users.Target(kind, object_name))

    # --- topics -----------------------------------------------------------------------------------

    def topics(self) -> list[dict[str, Any]]:
        """All Tank topics, with what each partition holds."""
        return [self._described(topic) for topic in topics_of(self._log).values()]

    def _described(self, topic: TopicDef) -> dict[str, Any]:
        partitions = []
        with self._log.read_view() as view:
            for number in range(topic.partitions):
                first = oldest_bundle(view.engine, topic.space_id, number)
                last = last_bundle(view.engine, topic.space_id, number)
                partitions.append(
                    {
                        "partition": number,
                        "first": str(first.first if first else 0),
                        "last": str(last.last if last else 0),
                    }
                )
        return {"topic": topic.name, "config": topic.config_text, "partitions": partitions}

    def create_topic(self, name: str, partitions: int, config: str = "") -> None:
        """Make a topic."""
        create_topic(self._log, name, partitions, config, now_seconds=self._log.inner.now())

    def configure_topic(self, name: str, config: str) -> None:
        """Give a topic another configuration."""
        set_config(self._log, name, config)

    def delete_topic(self, name: str) -> None:
        """Remove a topic with all its messages."""
        delete_topic(self._log, name)


def followers_of(folder: Path) -> list[dict[str, Any]]:
    """For whom the store in `folder` keeps its logs; it may be in use."""
    index = scan_directory(folder)
    found = []
    for name, position in sorted(read_followers(folder).items()):
        ahead = index.xlogs[len(logs_before(index, [position])) :]
        unread = sum(log.size for log in ahead)
        found.append({"name": name, "vclock": vclock_json(position), "unread_bytes": unread})
    return found
