"""The views of a store's spaces that somebody asked for, each opened in a thread once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from logweir.replication.topic.spaces import view_config
from logweir.replication.topic.views import LOG_VIEW, SPACE_PREFIX, View
from logweir.store import Log


class OpenViews:
    """See the module's text. To be used inside of a running event loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._views: dict[str, View] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._views)

    def get(self, topic: str) -> View | None:
        """The view of that name if somebody has asked for it."""
        return self._views.get(topic)

    def find(self, topic: str) -> View | None:
        """The view of that name, made when it is first asked for; None: no such space."""
        space = topic.removeprefix(SPACE_PREFIX) if topic != LOG_VIEW else ""
        if space and self._log.schema.get(space) is None:
            self.drop(topic)
            return None
        view = self._views.get(topic)
        if view is None:
            _, config = view_config(self._log, topic)
            view = self._views[topic] = View(self._log, space, config.content)
        return view

    def drop(self, topic: str) -> None:
        """Close the view of that name; its space or its configuration has changed."""
        view = self._views.pop(topic, None)
        if view is not None:
            view.close()

    def open(self, name: str) -> asyncio.Task[None] | None:
        """What opens that view; None if nothing has to be opened."""
        view = self.find(name)
        if view is None or view.is_ready:
            return None
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = asyncio.get_running_loop().create_task(
                asyncio.to_thread(view.open)
            )
            task.add_done_callback(lambda task: self._opening.pop(name))
        return task

    def grow(self) -> list[str]:
        """Take in what was committed. Returns the names of the views that have more now."""
        return [name for name, view in self._views.items() if view.is_ready and view.grow()]

    def close(self) -> Iterable[asyncio.Task[None]]:
        """Close all. Returns what is still opening, to be awaited."""
        for view in self._views.values():
            view.close()
        return tuple(self._opening.values())
