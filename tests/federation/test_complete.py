"""A party's last word: its text, what is refused, and that the longest one fits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cvfl.errors import DecodeError
from cvfl.federation.agreement.terms import MOST_ERRORS, told_certificates, told_errors
from cvfl.protocol import Certificate
from cvfl.wire.control import CONTROL, MAX_CONTROL, MOST_CERTIFICATES, Complete, decode_control, encode_control
from cvfl.wire.frame import seal

TEXT = (
    '{"type":"complete","session":2,"rounds":220,"parameters":{"bank":"00ff"},"errors":[[10,0.5,0.75,2.0]],'
    '"certificates":[[10,0.987,1.02,1.0],[219,-0.5,0.0,0.25]]}'
)
CERTIFICATES = {219: Certificate(-0.5, 0.0, 0.25), 10: Certificate(0.987, 1.02, 1.0)}


def frame(**changes: Any) -> bytes:
    return seal(CONTROL, 2, 0, [json.dumps(json.loads(TEXT) | changes).encode()])


def test_its_text_and_back() -> None:
    said = Complete(
        session=2,
        rounds=220,
        parameters={"bank": "00ff"},
        errors=[(10, 0.5, 0.75, 2.0)],
        certificates=told_certificates(CERTIFICATES),
    )
    assert said.model_dump_json() == TEXT
    assert decode_control(encode_control(said, 2)) == (2, said)
    assert Complete(**said.model_dump()) == said


def test_the_page_shows_that_text() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "wire-format.md").read_text(encoding="utf-8")
    assert TEXT in page.replace("\n    ", "")


@pytest.mark.parametrize(
    "changes",
    [
        {"more": 1},
        {"certificates": [[0, 1.0, 1.0, 1.0]] * (MOST_CERTIFICATES + 1)},
        {"certificates": [[0, 1.0, 1.0]]},
        *({"certificates": [[t0, 1.0, 1.0, 1.0]]} for t0 in (-1, 0.5, 1 << 40, None)),
        *({"certificates": [[0, cosine, 1.0, 1.0]]} for cosine in (1.01, -1.01, math.nan, "1")),
        *({"certificates": [[0, 1.0, ratio, 1.0]]} for ratio in (-0.01, math.inf, math.nan, None)),
        *({"certificates": [[0, 1.0, 1.0, ease]]} for ease in (0.0, -1.0, 1.01, math.nan)),
    ],
)
def test_what_is_not_as_it_should_be_is_refused(changes: dict[str, Any]) -> None:
    assert isinstance(decode_control(frame())[1], Complete)
    with pytest.raises(DecodeError, match="malformed"):
        decode_control(frame(**changes))


def test_the_longest_fits_into_a_control_message() -> None:
    """As many errors and certificates as a party tells, of late rounds and with all digits that they can have."""
    late, long = (1 << 40) - 200_000, 1.2345678901234567e-300
    figures = Certificate.of(1.0, -0.000123456789, 0.99999e-3, 2**-20)
    assert figures is not None
    said = Complete(
        session=late,
        rounds=late,
        parameters={"a" * 100: "f" * 64, "server": "f" * 64},
        errors=told_errors({late + n: (long, long, long) for n in range(3 * MOST_ERRORS)}),
        certificates=told_certificates({late + n: figures for n in range(3 * MOST_CERTIFICATES + 1)}),
    )
    assert len(said.errors) == MOST_ERRORS
    assert len(said.certificates) <= MOST_CERTIFICATES
    assert said.certificates[-1][0] == late + 3 * MOST_CERTIFICATES
    assert len(said.model_dump_json()) < MAX_CONTROL
    assert decode_control(encode_control(said, 2)) == (2, said)
