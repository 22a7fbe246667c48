"""Secure aggregation in whole federations: the same bits as without masks, dropouts, and shares that do not belong."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.cases import NAMED, SECURE, settings
from conformance.loop import Loop
from conformance.outcome import in_process, same
from cvfl.errors import ConfigError, RemoteProtocolError
from cvfl.federation.builder.machines import Federation, make_federation
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.rows.load import load_data
from cvfl.runtime import Meter, rounds
from cvfl.wire import Embedding, Evaluation, decode, encode
from cvfl.wire.frame import kind_of
from cvfl.wire.message import EMBEDDING, EVALUATION, GRADIENT
from federations import config, data, federation, parameters, run

pytestmark = pytest.mark.usefixtures("tidy")
CASES = ("secure", "secure, private labels")


def unmasked(fed: Federation) -> Federation:
    """The same federation with masks of zeros: the sums are of the symbols as they are."""
    for m in range(1, fed.plan.M + 1):
        fed.codecs.mask(m, lambda part, t0, n: torch.zeros(n, dtype=torch.int32).numpy().astype("u2"))
    return fed


@pytest.mark.parametrize("case", CASES)
def test_masks_change_no_bit_of_the_run(case: str) -> None:
    cfg = settings(**NAMED[case])
    table = load_data(cfg).data
    masked, plain = (make_federation(recipe_for(cfg, table), table) for _ in range(2))
    assert run(masked).total() == run(unmasked(plain)).total()
    for ours, theirs in zip(parameters(masked), parameters(plain), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("method", [{"algorithm": 1}, {"privacy": {"aggregation": "secure", "labels": "server"}}])
def test_on_a_fine_grid_it_is_the_open_sum(method: dict[str, Any]) -> None:
    """12 bits: the parameters of the run without compression, within its cells."""
    changes: dict[str, Any] = {"server_model": {"name": "sum", "hidden": [5]}, "local_iterations": 3}
    secure = {"compressor": "scalar:bits=12,low=-1,high=1", "privacy": {"aggregation": "secure"}}
    ours = federation(data(), **changes | secure | method)
    theirs = federation(data(), **changes, algorithm=2 if "privacy" in method else 1)
    run(ours)
    run(theirs)
    for one, other in zip(parameters(ours), parameters(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-3)


def sent(loop: Loop) -> dict[tuple[int, int, int], list[bytes]]:
    """Record what parties send: packets by (kind, party, round)."""
    heard: dict[tuple[int, int, int], list[bytes]] = defaultdict(list)
    receive = loop.server.role.receive

    def spy(m: int, frame: bytes) -> Any:
        if kind_of(frame) in (EMBEDDING, EVALUATION):
            message = decode(frame)
            assert isinstance(message, Embedding | Evaluation)
            heard[kind_of(frame), m, message.t0].append(bytes(message.packet))
        return receive(m, frame)

    loop.server.role.receive = spy  # type: ignore[method-assign]
    return heard


def test_a_dropout_repeats_the_round_under_new_masks(tmp_path: Path) -> None:
    """Before all shares are there, somebody goes: the run ends in the same bits, and no mask is used twice."""
    cfg = settings(**SECURE | {"every": 2})
    expected = in_process(cfg)
    loop = Loop(cfg, tmp_path)
    heard = sent(loop)
    while len(heard) < 8:
        loop.step()
    loop.kill(loop.names[-1])
    same(loop.run(), expected)
    again = [packets for packets in heard.values() if len(packets) > 1]
    assert again
    for packets in again:
        assert len(set(packets)) == len(packets)
    assert loop.server.role.meter.sent_again > 0


@pytest.mark.parametrize("kind", [EMBEDDING, EVALUATION])
def test_a_share_of_another_round_is_refused_and_nothing_of_it_is_told(kind: int, tmp_path: Path) -> None:
    loop = Loop(settings(**SECURE | {"rounds": 4, "evaluate_every": 1}), tmp_path)
    shares: dict[int, bytes] = {}

    def replay(m: int, frame: bytes) -> bytes:
        if m != 2 or kind_of(frame) != kind:
            return frame
        message = decode(frame)
        assert isinstance(message, Embedding | Evaluation)
        shares[message.t0] = bytes(message.packet)
        return encode(type(message)(message.t0, m, shares[max(message.t0 - 1, 0)]))

    receive = loop.server.role.receive
    loop.server.role.receive = lambda m, frame: receive(m, replay(m, frame))  # type: ignore[method-assign]
    with (
        loop.stack,
        pytest.raises(RemoteProtocolError, match=r"^round 1: the masked embeddings do not add up") as caught,
    ):
        loop.run()
    assert "\n" not in str(caught.value)


def test_the_answer_is_one_sum_for_all(tmp_path: Path) -> None:
    """Download grows with M, not with M squared: every party gets the same bytes."""
    fed = federation(data(M=4), **SECURE | {"data": {"name": "digits"}})
    replies = [reply for party in fed.parties for message in party.start() for reply in fed.server.receive(message)]
    assert len({encode(message) for _, message in replies}) == 1
    assert {m for m, _ in replies} == {1, 2, 3, 4}


@pytest.mark.parametrize("M", [2, 4, 16, 32])
def test_what_masks_cost(M: int) -> None:
    """The upload of a round is w bits a component, the check and headers; the open one is b bits and headers."""
    sizes = {}
    for aggregation in ("secure", "open"):
        changes = SECURE | {"data": {"name": "digits"}, "privacy": {"aggregation": aggregation}, "rounds": 1}
        fed, meter = federation(data(M=M, rows=64), **changes, batch_size=64), Meter()
        list(rounds(fed.server, fed.parties, meter, 1))
        sizes[aggregation] = meter.total().up / M
    n, width = 64 * 4, (M * 15).bit_length()
    frame, packet = 3 + 2, 2
    assert sizes["open"] == frame + packet + n * 4 / 8
    # Symbols of the check make their number one that is sent, in two bytes.
    assert sizes["secure"] == frame + packet + 2 + -(-(n + -(-32 // width)) * width // 8)
    assert width <= 4 + M.bit_length()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"server_model": {"name": "linear"}}, "needs each of them, set server_model.name = 'sum'"),
        ({"server_model": {"name": "attention"}}, "needs each of them, set server_model.name = 'sum'"),
        (
            {"server_model": {"name": "wide_deep", "hidden": [8]}, "compressor": "auto", "server_compressor": "auto"},
            "needs each of them, set server_model.name = 'sum'",
        ),
        ({"folding": True}, "no folding"),
        ({"compressor": "lattice:bits=4"}, "compressor: secure aggregation needs a grid that all parties have"),
        ({"compressor": "scalar:bits=4"}, "compressor: secure aggregation needs a grid that all parties have"),
        ({"party": {"org1": {"compressor": "topk:bits=4"}}}, r"party.org1.compressor: secure aggregation needs a grid"),
        ({"party": {"org2": {"compressor": "scalar:bits=5,low=-1,high=1"}}}, "org1 has .*bits=4.* org2 .*bits=5"),
        ({"party": {"org2": {"model": {"width": 5}}}}, "embeddings of one width"),
        ({"server_model": {"name": "federations:side_by_side"}}, "does not add embeddings up"),
        ({"compressor": "scalar:bits=16,low=-1,high=1"}, "3 parties and 16 bits need sums of 18 bits"),
    ],
)
def test_what_cannot_be_added_up_is_refused_before_anything_is_sent(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        federation(data(), **SECURE | {"data": {"name": "digits"}} | changes)
    assert "\n" not in str(caught.value)


def test_one_party_has_nothing_to_hide_in() -> None:
    with pytest.raises(ConfigError, match="two parties or more"):
        federation(data(M=1), **SECURE | {"data": {"name": "digits"}})


def test_with_private_labels_every_party_gets_the_gradient_in_the_sum() -> None:
    cfg = config(**SECURE | {"data": {"name": "digits"}, "privacy": {"aggregation": "secure", "labels": "server"}})
    fed = make_federation(recipe_for(cfg, data()), data())
    replies = [reply for party in fed.parties for message in party.start() for reply in fed.server.receive(message)]
    assert {kind_of(encode(message)) for _, message in replies} == {GRADIENT}
    assert len({bytes(message.packet) for _, message in replies}) == 1  # type: ignore[union-attr]
