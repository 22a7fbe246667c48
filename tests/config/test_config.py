from __future__ import annotations

from pathlib import Path

import pytest

from conformance.cases import settings
from cvfl.config.files import parse_config
from cvfl.errors import ConfigError, RemoteProtocolError
from cvfl.federation.agreement.terms import offer_of, terms_of
from cvfl.federation.builder.recipe import recipe_for
from cvfl.federation.roles import ServerRun
from cvfl.wire.control import Hello, encode_control
from federations import config, data

GOOD = {"data": {"name": "digits"}, "step_size": {"eta": 0.1}, "rounds": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bach_size": 3}, "unknown key 'bach_size'; did you mean 'batch_size'?"),
        ({"step_size": {"eta": 0.1, "shedule": "sqrt"}}, "unknown key 'step_size.shedule'; did you mean 'schedule'?"),
        ({"data": {"nam": "digits"}}, "unknown key 'data.nam'; did you mean 'name'?"),
        ({"data": {"name": "digits", "partys": 2}}, "unknown key 'data.partys'; did you mean 'parties'?"),
        ({"server_model": {"hiden": [1]}}, "unknown key 'server_model.hiden'; did you mean 'hidden'?"),
        ({"compressor": "latice:bits=2"}, "compressor: unknown compressor 'latice'; did you mean 'lattice'?"),
        ({"compressor": "scalar:bits=17"}, "bits must be a whole number from 1 to 16, not 17"),
        ({"server_compressor": "scalar"}, "server_compressor: compressor 'scalar' needs bits"),
        (
            {"partial_compressor": "latice:bits=2"},
            "partial_compressor: unknown compressor 'latice'; did you mean 'lattice'?",
        ),
        ({"gradient_compressor": "entropy"}, "gradient_compressor: entropy(...) wraps a compressor"),
        ({"compressor": "feedback(feedback(identity))"}, "compressor: compressor 'feedback': feedback of feedback"),
        ({"compressor": ""}, "compressor: unknown compressor ''"),
        ({"partial_compressor": ""}, "partial_compressor: unknown compressor ''"),
        ({"party": {"bank": {"compressor": "automatic"}}}, "party.bank.compressor: unknown compressor 'automatic'"),
        ({"foldings": True}, "unknown key 'foldings'; did you mean 'folding'?"),
        ({"folding": "perhaps"}, "folding: input should be a valid boolean"),
        ({"algorithm": 2, "local_iterations": 1, "folding": True}, "folding is for algorithm 1; algorithm 2 sends no"),
        ({"rounds": None}, "give either rounds or epochs"),
        ({"epochs": 2}, "give either rounds or epochs"),
        ({"privacy": {"noise": 1.0}}, "privacy.noise needs privacy.clip"),
        ({"privacy": {"noise_shared": True}}, "privacy.noise_shared needs privacy.noise: it says how large"),
        (
            {"privacy": {"noise_shared": True, "noise": 1.0, "clip": 1.0}},
            "privacy.noise_shared is for privacy.aggregation = 'secure': embeddings that can be read",
        ),
        ({"algorithm": 1, "privacy": {"labels": "server"}}, "privacy.labels = 'server' keeps labels from parties"),
        ({"rounds": 0}, "rounds: input should be greater than or equal to 1, not 0"),
        ({"rounds": "many"}, "rounds: input should be a valid integer"),
        ({"step_size": {"eta": 0.1, "schedule": "milestones"}}, "needs step_size.milestones"),
        ({"budget": "2 Mb"}, "budget: a number of bytes, or one with kB, MB or GB behind it, not '2 Mb'"),
        ({"budget": "MB"}, "budget: a number of bytes, or one with kB, MB or GB behind it, not 'MB'"),
        ({"budget": 0}, "budget: input should be greater than or equal to 1, not 0"),
        ({"budget": "1 MB", "compressor": "scalar:bits=2"}, "budget needs a compressor that can adapt, 'auto' or one"),
        (
            {"budget": "1 MB", "party": {"bank": {"compressor": "topk:bits=2"}}},
            "'auto' or one around 'shaped'; party.bank.compressor cannot",
        ),
        ({"budget": "1 MB", "algorithm": 2, "local_iterations": 1}, "budget is for algorithm 1 with embeddings"),
        ({"budget": "1 MB", "privacy": {"labels": "server"}}, "budget is for algorithm 1 with embeddings"),
        (
            {"budget": "1 MB", "privacy": {"aggregation": "secure"}, "server_model": {"name": "sum"}},
            "budget is for algorithm 1 with embeddings that are read",
        ),
        ({"loss": "hinge"}, "loss: input should be 'binary', 'multiclass' or 'squared', not 'hinge'"),
    ],
)
def test_each_mistake_gets_one_line_that_names_the_key(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(GOOD | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("budget", "bytes_"),
    [(1500, 1500), ("1500", 1500), ("700 B", 700), ("1.5 kB", 1500), ("2MB", 2_000_000), (" 0.25 GB ", 250_000_000)],
)
def test_a_budget_is_a_number_of_bytes_with_or_without_a_unit(budget: int | str, bytes_: int) -> None:
    assert parse_config(GOOD | {"budget": budget}).budget == bytes_


def test_a_budget_is_a_term_of_the_run_where_there_is_one() -> None:
    """Without one terms are those of earlier versions, whose runs go on."""
    assert "budget" not in terms_of(config())
    assert terms_of(parse_config(GOOD | {"budget": "1 MB"}))["budget"] == 1_000_000


@pytest.mark.parametrize(
    ("change", "replies"),
    [
        ({}, "auto"),
        ({"server_compressor": "scalar:bits=8"}, "identity"),
        ({"compressor": "auto", "server_compressor": "identity"}, "identity"),
        ({"server_compressor": " auto "}, "auto"),
    ],
)
def test_what_the_server_sends_follows_its_compressor_unless_said(change: dict[str, object], replies: str) -> None:
    parsed = parse_config(GOOD | change)
    assert (parsed.reply_compressor, parsed.folding) == (replies, None)
    assert (parsed.gradient_compressor, parsed.partial_compressor) == (None, None)


def test_each_message_has_its_compressor() -> None:
    """`auto` is another composition for each kind of message; what is said for one kind changes no other."""

    def built(**change: object) -> list[str]:
        recipe = recipe_for(config(**change), data())
        makers = (
            recipe.compressors[0],
            recipe.server_compressor,
            recipe.partial_compressor,
            recipe.gradient_compressor,
        )
        return [named(make()) for make in makers]

    auto = {"compressor": "auto", "server_compressor": "auto"}
    gradient = "Entropy DeadZone"
    shaped, model = "Feedback Entropy Shaped", "Feedback Entropy DeadZone"
    assert built(**auto) == [shaped, model, shaped, gradient]
    assert built(**auto, partial_compressor="scalar:bits=2") == [shaped, model, "Scalar", gradient]
    assert built(**auto, gradient_compressor="identity") == [shaped, model, shaped, "Identity"]
    assert built(**auto, party={"org1": {"compressor": "topk:bits=2"}}) == ["TopK", model, shaped, gradient]
    assert built(compressor="auto") == [shaped, "Identity", "Identity", "Identity"]
    assert built(gradient_compressor="auto") == ["Identity", "Identity", "Identity", gradient]


def named(compressor: object) -> str:
    """The names of a compressor and of those that it wraps."""
    inner = getattr(compressor, "inner", None)
    return type(compressor).__name__ + (f" {named(inner)}" if inner is not None else "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("folding", True),
        ("partial_compressor", "auto"),
        ("gradient_compressor", "scalar:bits=2"),
        ("server_compressor", "auto"),
    ],
)
def test_roles_that_differ_in_what_the_server_sends_are_refused_by_name(
    key: str, value: object, tmp_path: Path
) -> None:
    ours, theirs = settings(), settings(**{key: value})
    server = ServerRun(ours, "test", tmp_path).role
    hello = Hello(name="bank", terms=terms_of(theirs), offer=offer_of(theirs, "bank"))
    with pytest.raises(RemoteProtocolError, match=f"^{key} differs: bank has {value!r}, the server "):
        server.join(encode_control(hello, 0), "bank")


def test_a_compressor_of_its_own_is_no_term_but_told(tmp_path: Path) -> None:
    ours, theirs = settings(), settings(party={"bank": {"compressor": "auto"}})
    server = ServerRun(ours, "test", tmp_path).role
    offer = offer_of(theirs, "bank")
    assert offer.compressor == "auto"
    assert server.join(encode_control(Hello(name="bank", terms=terms_of(theirs), offer=offer), 0), "bank") == (2, [])
