"""Norms that a role does not take, each for itself; and what else a server that lies cannot have of a party."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.cases import SECURE, settings, table_settings, write_tables
from conformance.loop import Loop
from conformance.outcome import in_process, same
from cvfl.config.schema import RunConfig
from cvfl.errors import CvflError, DecodeError, RemoteProtocolError
from cvfl.federation.train import train
from cvfl.protocol.limits import Limits, limit_of
from cvfl.wire import Broadcast, Embedding, Gradient, Stop, decode, encode
from cvfl.wire.frame import kind_of
from cvfl.wire.message import BROADCAST, EMBEDDING, EVALUATION, GRADIENT

pytestmark = pytest.mark.usefixtures("tidy")
OPEN: dict[str, Any] = {"compressor": "identity", "server_compressor": "identity"}
MODES: dict[str, tuple[dict[str, Any], str, float, str]] = {
    "embedding": (OPEN, "embedding", 1e-3, r"round 0: the embedding has a row of norm"),
    "folded": (OPEN | {"folding": True}, "embedding", 1e-3, r"round 0: the embedding has a row of norm"),
    "secure": (SECURE, "embedding", 1e-3, r"round 0: the sum of the embeddings has a row of norm"),
    "gradient": (OPEN | {"algorithm": 2}, "gradient", 1e-6, r"server, for \w+, round 0: the gradient has a row"),
    "model": (OPEN, "model", 1e-3, r"server, round 0: the server model's [\w.]+ has norm"),
    "compressed model": ({}, "model", 1e-3, r"server, round 0: the server model's [\w.]+ has norm"),
    "weights": (
        OPEN | {"algorithm": 2, "data": {"name": "diabetes", "parties": 2}, "batch_size": 100},
        "model",
        1e-3,
        r"server, round 0: the weights of the embedding has norm",
    ),
    "labels at a party": (
        OPEN | {"privacy": {"labels": "bank"}, "local_iterations": 1},
        "embedding",
        1e-3,
        r"round 0: the embedding has a row of norm",
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_what_is_beyond_a_limit_is_refused_by_name(mode: str) -> None:
    changes, key, most, said = MODES[mode]
    with pytest.raises(CvflError, match=said) as caught:
        train(settings(**changes, limits={key: most}))
    assert f"more than limits.{key} = {most:g}; if that is to be expected, raise it" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["folded", "gradient", "secure", "compressed model"])
def test_limits_that_are_kept_change_nothing(mode: str) -> None:
    changes = MODES[mode][0]
    expected = train(settings(**changes))
    largest = expected.summary["largest"]
    limits = {"embedding": 10.0, "gradient": 1.0, "model": 10.0}
    assert 0 < max(largest.values()) < 10
    found = train(settings(**changes, limits=limits))
    assert found.summary["parameters"] == expected.summary["parameters"]
    assert found.summary["largest"] == largest


@pytest.mark.parametrize(("who", "key"), [("server", "embedding"), ("bank", "model")])
def test_a_role_decides_for_itself(who: str, key: str, tmp_path: Path) -> None:
    """Limits are no term: a role that has its own joins others that have none, and names who sent too much."""
    loop = Loop(settings(**OPEN), tmp_path)
    loop.config = settings(**OPEN, limits={key: 1e-3})
    loop.kill(who)
    with pytest.raises(RemoteProtocolError, match=rf"round 0: .* more than limits\.{key} = 0\.001"):
        loop.run()


def test_a_limit_counts_rows_and_whole_matrices() -> None:
    limits = Limits(embedding=5.0, model=5.0)
    rows = torch.tensor([[3.0, 4.0], [0.0, 5.0]])
    limit_of(limits, "embedding").check_rows(rows, "it")
    limit_of(limits, "gradient").check_rows(rows * 1e9, "it")
    limit_of(limits, "embedding").check_rows(torch.zeros(0, 2), "it")
    with pytest.raises(DecodeError, match=r"^it has a row of norm 5\.5, more than limits\.embedding = 5; "):
        limit_of(limits, "embedding").check_rows(rows * 1.1, "it")
    with pytest.raises(DecodeError, match=r"^it has norm 7\.071, more than limits\.model = 5; "):
        limit_of(limits, "model").check_matrix(rows, "it")


# A server that would have more of a party than was agreed on


def answer(loop: Loop, name: str, kind: int) -> bytes:
    """The next answer of the server to this party, taken from its way."""
    while not (loop.down[name] and kind_of(loop.down[name][0]) == kind):
        loop.step()
    return bytes(loop.down[name].popleft())


def refused(config: RunConfig, folder: Path, kind: int, lie: Callable[[Any], Any], said: str) -> None:
    """The party takes the true answer of a round, and nothing of the lie; it has sent what was agreed on."""
    loop = Loop(config, folder)
    frame = answer(loop, "bank", kind)
    role = loop.parties["bank"].role
    with pytest.raises(RemoteProtocolError, match=said):
        list(role.receive(encode(lie(decode(frame)))))
    assert role.party is not None
    assert role.party.t0 == 0
    sent = [kind_of(one) for one in role.receive(frame)]
    assert set(sent) <= {EMBEDDING, EVALUATION}
    assert sent.count(EMBEDDING) == 1


@pytest.mark.parametrize("t0", [1, 5, 10_000])
@pytest.mark.parametrize("algorithm", [1, 2])
def test_rounds_cannot_be_skipped_to_other_rows(algorithm: int, t0: int, tmp_path: Path) -> None:
    config = settings(**OPEN, algorithm=algorithm, local_iterations=1)
    kind, said = (BROADCAST, "Broadcast") if algorithm == 1 else (GRADIENT, "Gradient")
    refused(config, tmp_path, kind, lambda one: replace(one, t0=t0), rf"bank: .*{said} of round {t0} in round 0")


def test_a_round_is_answered_once(tmp_path: Path) -> None:
    """A second answer would have a second embedding of the same rows, or another evaluation."""
    loop = Loop(settings(**OPEN), tmp_path)
    frame = answer(loop, "bank", BROADCAST)
    role = loop.parties["bank"].role
    first = [decode(one) for one in role.receive(frame)]
    assert [type(one) for one in first] == [Embedding]
    with pytest.raises(RemoteProtocolError, match=r"bank: .*Broadcast of round 0 in round 1"):
        list(role.receive(frame))


def test_a_run_without_patience_has_no_end_but_its_last_round(tmp_path: Path) -> None:
    said = "bank: .*(round 0 as the best one|an unexpected Stop)"
    refused(settings(**OPEN), tmp_path, BROADCAST, lambda one: Stop(0, 0), said)


@pytest.mark.parametrize("other", ["gradient", "broadcast"])
def test_another_algorithm_in_the_middle(other: str, tmp_path: Path) -> None:
    algorithm = 1 if other == "gradient" else 2
    config = settings(**OPEN, algorithm=algorithm, local_iterations=1)
    kind = BROADCAST if algorithm == 1 else GRADIENT
    lie = {"gradient": Gradient(0, b"", b""), "broadcast": Broadcast(0, (), ())}[other]
    refused(config, tmp_path, kind, lambda one: lie, rf"bank: .*{type(lie).__name__}")


def test_own_tables_end_in_the_same_bits_with_limits(tmp_path: Path) -> None:
    write_tables(tmp_path)
    config = table_settings(tmp_path, limits={"embedding": 50.0, "model": 50.0})
    same(Loop(config, tmp_path / "loop").run(), in_process(table_settings(tmp_path)))
