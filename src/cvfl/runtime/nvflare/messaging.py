"""The one place that knows by which of FLARE's messages parcels travel: requests of its core cell, as bytes.

Why these: a request of the core cell is one message each way, and bytes go in it as they are. Aux requests take the
same way with a copy of the job's context and a second encoding, the task API lets a site ask every two seconds, and
arrays travel as references that the receiver fetches. What the core cell does not promise, delivery exactly once, the
numbers of parcels give.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message

from cvfl.runtime.nvflare.conduct import Ask
from cvfl.wire import Bytes

_CHANNEL, _TOPIC = "cvfl", "parcel"
_BYTES = bytes | bytearray | memoryview  # as the transport happens to hold them
_log = logging.getLogger(__name__)


def answer_requests(cell: Any, job: str, answer: Callable[[Bytes], bytes]) -> None:
    """Answer parcels that the server sends, from this job's process or, in the simulator, its own; and no others."""
    server = {FQCN.ROOT_SERVER, FQCN.join([FQCN.ROOT_SERVER, job])}

    def on_request(message: Any) -> Any:
        if message.get_header(MessageHeaderKey.ORIGIN) not in server or not isinstance(message.payload, _BYTES):
            return make_reply(ReturnCode.INVALID_REQUEST)
        try:
            return make_reply(ReturnCode.OK, body=answer(memoryview(message.payload)))
        except Exception:  # its text may say more than may leave
            _log.error("a request could not be answered")
            return make_reply(ReturnCode.PROCESS_EXCEPTION)

    cell.register_request_cb(channel=_CHANNEL, topic=_TOPIC, cb=on_request)


def asker(cell: Any, job: str, sites: Mapping[str, str]) -> Ask:
    """How to ask a site of this job; `sites` are names and the cells of their sites."""
    targets = {name: FQCN.join([fqcn, job]) for name, fqcn in sites.items()}

    def ask(name: str, data: bytes, seconds: float) -> Bytes | None:
        # A site that has not started or is being reconnected is no error: the request is repeated.
        reply = cell.core_cell.send_request(
            _CHANNEL, _TOPIC, targets[name], new_cell_message({}, data), seconds, optional=True
        )
        ok = reply is not None and reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.OK
        return memoryview(reply.payload) if ok and isinstance(reply.payload, _BYTES) else None

    return ask
