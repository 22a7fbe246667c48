"""Spec strings: every mistake is one line that says what to write instead."""

import pytest

from cvfl.compress import Identity, Lattice, Scalar, Schedule, TopK, build, known, register, registry
from cvfl.errors import ConfigError


@pytest.fixture
def _restored():
    """Registrations of a test do not outlive it."""
    before = dict(registry.COMPRESSORS)
    yield
    for name in registry.COMPRESSORS.keys() - before:
        del registry.COMPRESSORS[name]


def test_names():
    assert set(known()) >= {"identity", "lattice", "scalar", "schedule", "topk"}
    assert known() == sorted(known())


@pytest.mark.parametrize(
    ("spec", "kind", "attributes"),
    [
        ("identity", Identity, {}),
        ("identity:", Identity, {}),
        ("scalar:bits=2", Scalar, {"bits": 2}),
        (" scalar : bits = 16 ", Scalar, {"bits": 16}),
        ("lattice:bits=3", Lattice, {"bits": 3}),
        ("topk:bits=2", TopK, {"bits": 2, "by": "column"}),
        ("topk:by=entry,bits=4", TopK, {"bits": 4, "by": "entry"}),
        ("schedule(identity)", Schedule, {"rate": 0.5}),
        ("schedule(topk:bits=2,by=entry):rate=0.25", Schedule, {"rate": 0.25}),
        ("schedule( schedule(scalar:bits=1):rate=1 ) : rate=2", Schedule, {"rate": 2}),
    ],
)
def test_grammar(spec, kind, attributes):
    compressor = build(spec)
    assert type(compressor) is kind
    assert {key: getattr(compressor, key) for key in attributes} == attributes


def test_ranges_are_numbers():
    assert build("scalar:bits=2,low=-1,high=1").range.fixed == (-1.0, 1.0)  # type: ignore[attr-defined]
    assert build("lattice:bits=2,low=-1e-3,high=2.5").range.fixed == (-0.001, 2.5)  # type: ignore[attr-defined]
    assert build("scalar:bits=2").range.fixed is None  # type: ignore[attr-defined]


def test_nesting_reaches_the_inside():
    schedule = build("schedule(schedule(lattice:bits=5,low=0,high=1):rate=1)")
    assert schedule.inner.rate == 1  # type: ignore[attr-defined]
    assert (schedule.inner.inner.bits, schedule.inner.inner.range.fixed) == (5, (0.0, 1.0))  # type: ignore[attr-defined]


def test_each_call_gives_a_new_one():
    assert build("topk:bits=2") is not build("topk:bits=2")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("scaler:bits=2", "unknown compressor 'scaler'; did you mean 'scalar'?"),
        ("latice:bits=2", "did you mean 'lattice'?"),
        ("top-k:bits=2", "did you mean 'topk'?"),
        ("schedule(scaler:bits=2)", "did you mean 'scalar'?"),
        ("", "unknown compressor '' (known: deadzone, entropy, feedback, identity, "),
        ("zzz", "identity, lattice, scalar, schedule, shaped, topk"),
        ("scalar:bit=2", "compressor 'scalar' has no option 'bit'; did you mean 'bits'?"),
        ("scalar:bits=2,hihg=1", "no option 'hihg'; did you mean 'high'?"),
        ("schedule(identity):rat=1", "no option 'rat'; did you mean 'rate'?"),
        ("identity:bits=2", "no option 'bits'"),
        ("topk:bits=2,by=columns", "did you mean 'column'?"),
        ("scalar:bits=0", "bits must be a whole number from 1 to 16, not 0"),
        ("scalar:bits=17", "from 1 to 16, not 17"),
        ("lattice:bits=-1", "from 1 to 16, not -1"),
        ("lattice:bits=2.5", "from 1 to 16, not 2.5"),
        ("lattice:bits=2.0", "from 1 to 16, not 2.0"),
        ("topk:bits=true", "from 1 to 16, not 'true'"),
        ("scalar", "compressor 'scalar' needs bits, as in 'scalar:bits=2'"),
        ("scalar:low=0,high=1", "needs bits"),
        ("scalar:bits=2,low=0", "give both low and high"),
        ("scalar:bits=2,low=1,high=0", "low must be below high"),
        ("scalar:bits=2,low=a,high=b", "compressor 'scalar': "),
        ("scalar:bits=2,bits=3", "bits is given twice"),
        ("scalar:bits", "write options as key=value, not 'bits'"),
        ("scalar:bits=", "write options as key=value"),
        ("scalar:=2", "write options as key=value"),
        ("scalar:bits=2,", "write options as key=value, not ''"),
        ("scalar:bits=2,,low=0", "write options as key=value, not ''"),
        ("schedule", "wraps a compressor, as in 'schedule(scalar:bits=2)'"),
        ("schedule()", "unknown compressor ''"),
        ("schedule:rate=1", "wraps a compressor"),
        ("scalar(identity):bits=2", "scalar does not wrap another compressor"),
        ("schedule(scalar:bits=2", "parentheses do not match"),
        ("schedule(scalar:bits=2))", "parentheses do not match"),
        ("schedule(identity):rate=9", "rate must be above 0 and below 8, not 9"),
        ("schedule(identity):rate=fast", "compressor 'schedule': "),
    ],
)
def test_mistakes(spec, text):
    with pytest.raises(ConfigError) as caught:
        build(spec)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [Scalar, Lattice, TopK])
@pytest.mark.parametrize("bits", [0, 17, 2.5, True, "2", None])
def test_bits_of_a_constructor(kind, bits):
    with pytest.raises(ConfigError, match="whole number from 1 to 16"):
        kind(bits)


@pytest.mark.usefixtures("_restored")
def test_registering():
    def coarse(bits: int = 1) -> Scalar:
        return Scalar(bits, low=-1, high=1)

    register("coarse_1", coarse)
    register("coarse_1", coarse)  # the same again: nothing happens
    assert "coarse_1" in known()
    assert build("coarse_1:bits=3").bits == 3  # type: ignore[attr-defined]
    assert build("schedule(coarse_1)").inner.bits == 1  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_restored")
def test_registering_a_wrapper():
    class Twice(Schedule):
        def __init__(self, inner: "registry.Compressor", again: int = 2) -> None:  # type: ignore[name-defined]
            super().__init__(inner)
            self.again = again

    Twice.__init__.__annotations__["inner"] = "Compressor"  # as `from __future__ import annotations` leaves it
    register("twice", Twice)
    assert build("twice(scalar:bits=4):again=3").again == 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="wraps a compressor"):
        build("twice")


def test_a_name_is_taken_once():
    with pytest.raises(ConfigError, match="the compressor name 'scalar' is taken by"):
        register("scalar", Lattice)
    assert type(build("scalar:bits=2")) is Scalar


@pytest.mark.parametrize("name", ["", "_", "a b", "a:b", "a(b)", "a,b", "a=b"])
def test_a_name_that_a_spec_could_not_hold(name):
    with pytest.raises(ConfigError, match="letters, digits and _"):
        register(name, Scalar)
    assert name not in known()
