"""A question about a call that waits for somebody's word, as engines and approvers see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

ApprovalState = Literal["waiting", "granted", "used", "refused", "withdrawn", "expired"]


@dataclass(frozen=True, slots=True)
class RequiredRow:
    """A row that a question has to have answered."""

    name: str
    """The row's name."""
    persons: int
    """How many have to grant it."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A question about a call that waits for somebody's word, as it stands now.

    >>> from bundle_router import Step
    >>> from bundle_router.core.catalog import ApprovalRow, Route
    >>> from bundle_router.testing import fake_router, small_catalog
    >>> catalog = small_catalog(
    ...     {"bank.all": ["bank.transfer"]},
    ...     routes=[Route("all", bundles=("bank.all",))],
    ...     approvals=[ApprovalRow("transfers", calls=("tool:bank.transfer",))],
    ... )
    >>> step = Step(run_id="r-42", workflow="payments", role="clerk", step="pay")
    >>> with fake_router(catalog, results={"bank.transfer": "done"}) as router:
    ...     decision = router.route_sync(step)
    ...     held = router.call_sync("r-42", "bank.transfer", {"amount": 700}, key="pay-7")
    ...     granted = router.grant_sync(held.approval.id, by="lead")
    ...     result = router.call_sync("r-42", "bank.transfer", {"amount": 700}, key="pay-7")
    >>> held.outcome, granted.state, result.text
    ('awaiting_approval', 'granted', 'done')
    """

    id: str
    """Its id, by which it is answered, and gone on with (`call(..., approval=id)`)."""
    state: ApprovalState
    """`waiting`, `granted`, `used`, `refused`, `withdrawn` or `expired`."""
    tool: str
    """The canonical name of the tool."""
    rows: tuple[RequiredRow, ...]
    """The rows of policy that have to be answered, and by how many persons."""
    binding: str
    """The digest of what an answer is bound to: the run, place, principal, tool, arguments, terms.
    """
    hidden: int
    """How many values of the arguments nobody is shown, since they are secrets."""
    answer_by: str
    """Until when it may be answered, in UTC."""
    use_by: str = ""
    """Until when its grant may be used; empty while it is not granted."""
    url: str = ""
    """The page where it is answered; empty where there is none."""
    run_id: str = ""
    """Its run."""
    principal: str = ""
    """Whom the step is for."""
    key: str = ""
    """The key of the call."""
    arguments: str = ""
    """The arguments as JSON text, as they will be run, without secrets; empty in a call's result,
    whose caller has them.
    """
    messages: tuple[str, ...] = ()
    """What the rows say to look at."""
    granted_by: tuple[str, ...] = ()
    """The names of those who granted it so far."""
    reason: str = ""
    """Why it was refused."""
    advice: str = ""
    """What may be done instead, where it was refused."""
    void: str = ""
    """Why an answer would not count any more: `superseded`, `row_changed` or `tool_changed`."""

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values."""
        lists = {"rows": [asdict(row) for row in self.rows]}
        texts = {"messages": list(self.messages), "granted_by": list(self.granted_by)}
        return {**asdict(self), **lists, **texts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Approval:
        """Return the question of `to_json`. Raises KeyError or TypeError for anything else."""
        lists = {name: tuple(value[name]) for name in ("messages", "granted_by")}
        rows = tuple([RequiredRow(**row) for row in value["rows"]])
        return cls(**{**value, **lists, "rows": rows})
