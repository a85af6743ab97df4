"""A lane's requests as transactions of a group of the store, each of its own or all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logweir.errors import RequestError
from logweir.replication.greenstack.serve.commands import Answer, Executor
from logweir.replication.greenstack.serve.lanes import Pending
from logweir.replication.greenstack.serve.runs import Answered
from logweir.replication.greenstack.wire.codec import FlexKey, Frame, Status
from logweir.replication.logs import get_logger
from logweir.store.commit.group import Group

__all__ = ["execute_alone", "execute_together", "first_answers", "is_part", "refusal_of"]

_log = get_logger("logweir.replication.greenstack")


def refusal_of(one: Pending, now: float) -> Status | None:
    """Why a request is not executed: it is refused, or came too late; None: it is."""
    if one.refusal is not None:
        return one.refusal
    if not isinstance(one.frame, Frame):  # what has a limit is in no run
        return None
    limit_ms = one.frame.number(FlexKey.EXPIRES_MS) if one.frame.flex else None
    is_late = limit_ms and now - one.received_at > limit_ms / 1000
    return Status.TMP_FAILURE if is_late else None


def _answer_one(executor: Executor, one: Pending, now: float) -> Answer:
    refusal = refusal_of(one, now)
    if refusal is not None:
        return refusal, b""
    assert isinstance(one.frame, Frame)
    try:
        return executor.execute(one.frame)
    except RequestError as error:
        _log.warning("greenstack.request_failed", opcode=one.frame.opcode, error=str(error))
        return Status.INTERNAL_ERROR, b""


def execute_alone(group: Group, executor: Executor, one: Pending, now: float) -> Answer:
    """One request as a transaction of its own."""
    mark = group.mark()
    answer = _answer_one(executor, one, now)
    if answer[0] != Status.SUCCESS and answer[0] != Status.NOT_FOUND:
        group.rollback(mark)
    else:
        group.end_transaction()
    return answer


def execute_together(
    group: Group, executor: Executor, requests: Sequence[Pending], now: float
) -> list[Answer]:
    """All requests as one transaction, or none."""
    mark = group.mark()
    answers: list[Answer] = []
    for number, one in enumerate(requests):
        answer = _answer_one(executor, one, now)
        answers.append(answer)
        if answer[0] != Status.SUCCESS:
            group.rollback(mark)
            return [
                answer if i == number else (other.refusal or Status.INVALID_STATE, b"")
                for i, other in enumerate(requests)
            ]
    return answers


def first_answers(
    requests: Sequence[Pending],
    answer: Callable[[Pending], Answer | Answered | None],
    is_enough: Callable[[int], bool],
) -> list[Answer | Answered]:
    """The answers to the first requests, up to one that has none; `is_enough`: of so many bytes."""
    answers: list[Answer | Answered] = []
    size = 0
    for one in requests:
        made = answer(one)
        if made is None:
            break
        answers.append(made)
        size += len(made.said if isinstance(made, Answered) else made[1])
        if is_enough(size) or is_part(made):
            break
    return answers


def is_part(made: Answer | Answered) -> bool:
    """Whether it answers a part of a run: the rest was not executed."""
    return isinstance(made, Answered) and made.rest is not None
