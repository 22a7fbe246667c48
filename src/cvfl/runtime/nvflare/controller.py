"""The server's job process: a FLARE controller that conducts the server role."""

from __future__ import annotations

from contextlib import closing

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from cvfl.errors import CvflError, plain
from cvfl.runtime.nvflare.conduct import conduct
from cvfl.runtime.nvflare.messaging import asker
from cvfl.runtime.nvflare.place import Roles, place_of


class ServerController(Controller):  # type: ignore[misc]
    """Plays the server role that the job's component `roles` makes; the parties are the sites of the same names."""

    def __init__(self, roles: str) -> None:
        super().__init__()
        self.roles = roles

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing before the run."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing after it."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Conduct the run; an error ends the job with its line."""
        engine, job = fl_ctx.get_engine(), fl_ctx.get_job_id()
        roles: Roles = engine.get_component(self.roles)
        place = place_of(fl_ctx, "server")
        try:
            with closing(roles.server(place)) as duty:
                sites = {client.name: client.get_fqcn() for client in engine.get_clients()}
                if missing := [name for name in duty.role.names if name not in sites]:
                    raise CvflError(f"{missing[0]} is no site of this job ({', '.join(sites)})")
                self.log_info(fl_ctx, f"the parties are {', '.join(duty.role.names)}")
                ask = asker(engine.get_cell(), job, sites)
                if conduct(duty.role, ask, lambda: bool(abort_signal.triggered), *duty.limits):
                    duty.finish()
                    self.log_info(fl_ctx, "the run is over")
        except CvflError as error:
            line = plain(str(error))  # it may quote a party
            roles.failed(place, line)
            self.system_panic(line, fl_ctx)
