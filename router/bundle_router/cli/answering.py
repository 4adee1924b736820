"""`bundle-router approvals`: lists calls that wait for somebody's word, and answers them on their
store.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, get_args

from bundle_router.cli.output import counted, print_json, say, say_whole, table
from bundle_router.cli.shared_arguments import add_opening, open_router
from bundle_router.core.values.approvals import Approval, ApprovalState
from bundle_router.errors import RequestError

if TYPE_CHECKING:
    from bundle_router.wiring import Router

_ALL = "all"
_HERE = "--here"


def declare(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="verb", required=True)

    def verb(
        name: str, handler: Callable[[argparse.Namespace], int], summary: str, *, named: bool = True
    ) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=summary, description=summary)
        sub.set_defaults(handler=handler)
        if named:
            sub.add_argument("approval_id", metavar="approval", help="the id of the question")
        add_opening(sub)
        return sub

    listing = verb("list", _list, "list the calls that wait, the soonest bound first", named=False)
    listing.add_argument("--run", metavar="RUN", help="only of this run and of those below it")
    listing.add_argument(
        "--state",
        choices=(*get_args(ApprovalState), _ALL),
        default="waiting",
        help="only in this state (default: waiting)",
    )
    verb("show", _show, "show a call that waits: its arguments as they will run, and who answered")
    granting = verb("grant", _grant, "grant a call that waits")
    granting.add_argument(
        "--binding", default="", help="what was shown: a question about another call is not granted"
    )
    _add_answer(granting)
    refusing = verb("refuse", _refuse, "refuse a call that waits, or take its grant back")
    refusing.add_argument("--advice", default="", help="what the agent may do instead")
    _add_answer(refusing)
    _add_answer(verb("withdraw", _withdraw, "take a question back, so that nobody is asked"))


def _add_answer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", default="", help="why, for the record and the agent")
    parser.add_argument(
        _HERE,
        action="store_true",
        help=(
            "answer on the store itself, as the user of this machine: not where a row names"
            " approvers"
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    status: int = arguments.handler(arguments)
    return status


# --- reading --------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    state = None if arguments.state == _ALL else arguments.state
    with open_router(arguments) as router:
        questions = router.approvals_sync(arguments.run, state=state)
    if arguments.json:
        print_json([question.to_json() for question in questions])
        return 0
    words = "" if state is None else f" {state}"
    say(f"{counted(len(questions), 'call')}{words}")
    if questions:
        rows = [_row(question) for question in questions]
        table(("approval", "state", "tool", "answer by (UTC)", "rows"), rows)
    return 0


def _row(question: Approval) -> tuple[str, ...]:
    bound = question.answer_by[:16]
    return question.id, question.state, question.tool, bound, _rows(question)


def _show(arguments: argparse.Namespace) -> int:
    with open_router(arguments) as router:
        question = router.approval_sync(arguments.approval_id)
    if arguments.json:
        print_json(question.to_json())
    else:
        show(question)
    return 0


def show(question: Approval) -> None:
    """Print a question."""
    void = f", and does not count any more ({question.void})" if question.void else ""
    say(f"{question.id}: {question.state}{void}")
    say(f"  call       {question.tool} in run {question.run_id}")
    say(f"  for        {question.principal or 'nobody in particular'}")
    say(f"  rows       {_rows(question)}")
    for message in question.messages:
        say_whole("  look at    ", message, under=13)
    say(f"  answer by  {question.answer_by}")
    if question.use_by:
        say(f"  use by     {question.use_by}")
    if question.granted_by:
        say(f"  granted    {', '.join(question.granted_by)}")
    if question.reason or question.advice:
        say_whole(
            "  refused    ", " ".join(filter(None, (question.reason, question.advice))), under=13
        )
    if question.hidden:
        say(f"  hidden     {counted(question.hidden, 'value')} of the arguments")
    say(f"  binding    {question.binding}")
    say("  arguments, as they will be run:")
    say(question.arguments)


def _rows(question: Approval) -> str:
    return ", ".join(f"{row.name!r} ({row.persons})" for row in question.rows)


# --- answering ------------------------------------------------------------------------------------


def _grant(arguments: argparse.Namespace) -> int:
    from bundle_router.wiring.approval_lists import grant_here

    return _answer(
        arguments,
        lambda router: grant_here(
            router.endpoint,
            arguments.approval_id,
            user=getpass.getuser(),
            binding=arguments.binding,
            reason=arguments.reason,
        ),
    )


def _refuse(arguments: argparse.Namespace) -> int:
    from bundle_router.wiring.approval_lists import refuse_here

    return _answer(
        arguments,
        lambda router: refuse_here(
            router.endpoint,
            arguments.approval_id,
            user=getpass.getuser(),
            reason=arguments.reason,
            advice=arguments.advice,
        ),
    )


def _withdraw(arguments: argparse.Namespace) -> int:
    return _answer(
        arguments,
        lambda router: router.withdraw(arguments.approval_id, reason=arguments.reason),
    )


def _answer(
    arguments: argparse.Namespace, answer: Callable[[Router], Coroutine[Any, Any, Approval]]
) -> int:
    if not arguments.here:
        raise RequestError(
            f"an answer on the store itself needs {_HERE}",
            advice="it is recorded as of the user of this machine; nothing proves who that is",
        )

    async def answered(router: Router) -> Approval:
        async with router:
            return await answer(router)

    question = asyncio.run(answered(open_router(arguments)))
    if arguments.json:
        print_json(question.to_json())
    else:
        say(f"{question.id}: {question.state}")
    return 0
