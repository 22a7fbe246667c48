"""A site's job process: a FLARE executor that holds the party role for the whole job and answers requests."""

from __future__ import annotations

from functools import partial

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from cvfl.runtime.nvflare.mailbox import Mailbox
from cvfl.runtime.nvflare.messaging import answer_requests
from cvfl.runtime.nvflare.place import Roles, place_of


class PartyExecutor(Executor):  # type: ignore[misc]
    """Plays the party role that the job's component `roles` makes, for the party with the name of this site."""

    def __init__(self, roles: str) -> None:
        super().__init__()
        self.roles = roles
        self._mailbox: Mailbox | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start the role with the job and end it with the job."""
        if event_type == EventType.START_RUN:
            engine, job, site = fl_ctx.get_engine(), fl_ctx.get_job_id(), fl_ctx.get_identity_name()
            roles: Roles = engine.get_component(self.roles)
            place = place_of(fl_ctx, site)
            self._mailbox = Mailbox(site, partial(roles.party, place), partial(roles.failed, place))
            answer_requests(engine.get_cell(), job, self._mailbox.answer)
        elif event_type == EventType.END_RUN and self._mailbox:
            self._mailbox.close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """There are no tasks: everything goes through requests."""
        return make_reply(ReturnCode.TASK_UNKNOWN)
