"""What observers see is what receivers decode, bit for bit, from the frames of real rounds."""

from dataclasses import replace

import pytest
import torch

from cvfl.audit.subject import Still
from cvfl.audit.views import EMBEDDING, GRADIENT, HELD_OUT, HELD_OUT_SUM, OTHERS, SUM, Sights, Tap
from cvfl.federation.builder.machines import make_federation
from cvfl.protocol import Loss
from cvfl.runtime import rounds
from cvfl.types import Direction
from federations import data, federation

COMPRESSORS = ["identity", "scalar:bits=2", "lattice:bits=2", "topk:bits=8", "topk:bits=8,by=entry", "auto"]
SECURE = {
    "privacy": {"aggregation": "secure"},
    "compressor": "scalar:bits=3,low=-1,high=1",
    "server_model": {"name": "sum"},
}


class Watched(Tap):
    """A tap that compares what is seen with what the server has decoded, whenever it answers."""

    def __init__(self, fed, sights):
        super().__init__(sights.see)
        self.fed, self.sights, self.compared = fed, sights, set()

    def add(self, m, direction, frame):
        super().add(m, direction, frame)
        server = self.fed.server
        if direction is Direction.DOWN and server.t0 not in self.compared:
            self.compared.add(server.t0)
            rows = server.plan.batch(server.t0)
            seen = [view.last[rows] for view in self.sights.views() if view.sees in (EMBEDDING, SUM)]
            assert len(seen) == len(server._phi)
            for values, phi in zip(seen, server._phi, strict=True):
                assert torch.equal(values, phi.detach().double())


def watched(fed, reader="server"):
    sights = Sights(fed, reader)
    tap = Watched(fed, sights) if reader == "server" else Tap(sights.see)
    for _ in rounds(fed.server, fed.parties, tap, workers=1):
        pass
    return sights, tap


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_embeddings_are_seen_as_the_server_decodes_them(compressor, precision):
    fed = federation(compressor=compressor, precision=precision)
    sights, tap = watched(fed)
    assert tap.compared == set(range(12))
    views = [view for view in sights.views() if view.sees == EMBEDDING]
    assert [(view.observers, view.of, view.looks) for view in views] == [
        (("server", "parties"), (m,), 3) for m in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    "changes", [SECURE, SECURE | {"algorithm": 2, "privacy": {"aggregation": "secure", "labels": "server"}}]
)
def test_masked_embeddings_are_seen_as_their_sum(changes):
    fed = federation(**changes)
    sights, tap = watched(fed)
    assert len(tap.compared) == 12
    kinds = {view.sees for view in sights.views()}
    assert kinds == {SUM, HELD_OUT_SUM, GRADIENT if "algorithm" in changes else OTHERS}
    total = next(view for view in sights.views() if view.sees == SUM)
    assert (total.observers, total.of) == (("server",), (1, 2, 3))


def test_a_party_takes_its_own_embedding_out_of_the_sum():
    fed = federation(**SECURE, step_size={"eta": 1e-9})
    views = list(watched(fed)[0].views())
    total = next(view for view in views if view.sees == SUM)
    for view in (view for view in views if view.sees == OTHERS):
        m = fed.recipe.names.index(view.observers[0]) + 1
        assert view.of == tuple(j for j in (1, 2, 3) if j != m)
        with torch.no_grad():
            own = fed.parties[m - 1].model(fed.parties[m - 1].holding.train)
        assert float((total.last - view.last - own).abs().max()) <= 1 / 7 + 1e-6  # half a step of the grid, dithered


def test_folded_sums_are_seen_as_the_party_decodes_them():
    fed = federation(folding=True, partial_compressor="scalar:bits=4")
    codecs = fed.codecs.replies
    decoded = {}
    for m, codec in codecs.items():
        codec.decode = kept(codec.decode, decoded, m)
    views = {view.observers[0]: view for view in watched(fed)[0].views() if view.sees == OTHERS}
    rows = fed.plan.batch(11)
    for m, name in enumerate(fed.recipe.names, start=1):
        assert torch.equal(views[name].last[rows], decoded[m].double())
        assert views[name].of == tuple(j for j in (1, 2, 3) if j != m)


def kept(decode, into, m):
    def decoding(*arguments):
        into[m] = decode(*arguments)
        return into[m]

    return decoding


@pytest.mark.parametrize(("loss", "Q"), [(Loss.BINARY, 1), (Loss.BINARY, 3), (Loss.SQUARED, 3)])
def test_gradients_are_those_of_the_rows(loss, Q):
    fed = federation(data(loss), algorithm=2, local_iterations=Q)
    fed = make_federation(at_rest(fed), data(loss))
    views = [view for view in watched(fed)[0].views() if view.sees == GRADIENT]
    with torch.no_grad():
        phi = [party.model(party.holding.train) for party in fed.parties]
    leaves = [h.requires_grad_() for h in phi]
    fed.plan.loss(fed.server.model(leaves), fed.server.labels.train).backward()
    for m, view in enumerate(views, start=1):
        assert view.observers == (fed.recipe.names[m - 1],)
        torch.testing.assert_close(view.last, leaves[m - 1].grad * fed.plan.rows)
        torch.testing.assert_close(view.mean, view.last)
        if loss is Loss.BINARY:
            assert view.weights is None
        else:
            assert torch.equal(view.weights, fed.server.model.head.weight[:, fed.plan.columns(m)])


def at_rest(fed):
    return replace(fed.recipe, plan=replace(fed.plan, step_size=Still(eta=1.0)))


def test_held_out_rows_are_seen_nearly_as_they_are():
    fed = federation(compressor="scalar:bits=1")
    views = [view for view in watched(fed)[0].views() if view.sees == HELD_OUT]
    for party, view in zip(fed.parties, views, strict=True):
        assert (view.observers, view.held_out) == (("server",), True)
        with torch.no_grad():
            exact = party.model.eval()(party.holding.held_out[-1])
            torch.testing.assert_close(view.last, exact, rtol=0, atol=1e-12)


def test_the_mean_of_dithered_messages_comes_closer():
    fed = make_federation(at_rest(federation(compressor="scalar:bits=2", rounds=80)), data())
    for party, view in zip(fed.parties, watched(fed)[0].views(), strict=False):
        with torch.no_grad():
            h = party.model(party.holding.train)
        assert (view.mean - h).norm() < 0.4 * (view.last - h).norm()
        assert view.looks == 20


@pytest.mark.parametrize("secure", [False, True])
def test_a_label_holder_reads_the_others_and_nobody_reads_the_holder(secure):
    privacy = {"labels": "org2", "aggregation": "secure" if secure else "open"}
    fed = federation(algorithm=2, **(SECURE if secure else {}) | {"privacy": privacy})
    sights = Sights(fed, "org2")
    for _ in rounds(fed.server, fed.parties, Tap(sights.see), workers=1):
        pass
    seen = {(view.observers, view.sees, view.of) for view in sights.views()}
    gradients = {(("org1",), GRADIENT, (2, 3)), (("org3",), GRADIENT, (1, 2))}
    if secure:
        assert seen == gradients | {(("org2",), SUM, (1, 3)), (("org2",), HELD_OUT_SUM, (1, 3))}
    else:
        assert seen == gradients | {(("org2",), kind, (m,)) for kind in (EMBEDDING, HELD_OUT) for m in (1, 3)}
