"""Configuration files: read, changed by keys, and written again with the words of whoever wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cvfl.config.files import load_config, write_changed
from cvfl.errors import ConfigError

TOML = 'rounds = 3\n[data]\nname = "digits"\n[step_size]\neta = 0.1\n'


def test_file_and_changes(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    loaded = load_config(path, ["data.parties=2", "compressor=scalar:bits=4", "step_size.eta=0.5", "seed=9"])
    assert (loaded.data.parties, loaded.compressor, loaded.step_size.eta, loaded.seed) == (2, "scalar:bits=4", 0.5, 9)
    for change, message in [("seed", "takes key=value"), ("rounds.x=1", "rounds is not a section")]:
        with pytest.raises(ConfigError, match=message):
            load_config(path, [change])
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.toml")
    path.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"run\.toml"):
        load_config(path)


def test_files_are_found_from_the_new_place_and_secrets_stay_where_they_were(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "fed.toml"
    path.write_text(
        """
        epochs = 3
        [data]
        id = "ID"
        [step_size]
        eta = 0.1
        [network]
        certificates = "/etc/certs"
        [party.bank]
        table = "bank.csv"
        label = "y"
        compressor = "topk:bits=2"
        types = { "post code" = "category", "größe \\u007f" = "number" }
        [party.clinic]
        url = "postgresql://reader:${SECRET}@db/records"
        query = "select \\"x\\" from t"
        """
    )
    out = tmp_path / "b" / "c" / "planned.toml"
    keys = {"compressor": "scalar:bits=2", "epochs": 2, "party.bank.compressor": None, "party.clinic.compressor": None}
    write_changed(path, ["seed=7"], keys, out, "why")
    assert out.read_text().startswith("# why\n")
    before, after = load_config(path), load_config(out)
    assert (after.seed, after.epochs, after.compressor_of("bank")) == (7, 2, "scalar:bits=2")
    assert after.party["bank"].table.resolve() == before.party["bank"].table.resolve()
    assert after.network.certificates == Path("/etc/certs")
    assert after.party["bank"].types == before.party["bank"].types
    assert after.party["clinic"] == before.party["clinic"]
    assert after.step_size == before.step_size


WRITTEN = """\
# Our federation.
# Ask Ada before you change it.

epochs = 3                  # a first try
batch_size=16
compressor = "auto"         # of the embeddings

[step_size]                 # found by hand
eta = 1e-1

[party.bank]
table   = 'bank.csv'        # 12 rows
label = "y"
compressor = "topk:bits=2"  # bytes are dear at the bank

# The clinic joined in May.
[party.clinic]
table = "clinic.csv"
missing = [
    "",
    "n/a",                  # typed by hand
]

[data]
id = "ID"

[party.clinic.model]        # a section that comes late
width = 4
"""
CHANGED = """\
# why
# Our federation.
# Ask Ada before you change it.

epochs = 5                  # a first try
batch_size=16
compressor = "identity"         # of the embeddings
folding = false

[step_size]                 # found by hand
eta = 1e-1
schedule = "sqrt"

[party.bank]
table   = "../bank.csv"        # 12 rows
label = "y"

# The clinic joined in May.
[party.clinic]
table = "../clinic.csv"
missing = [
    "",
    "n/a",                  # typed by hand
]

[data]
id = "ID"

[party.clinic.model]        # a section that comes late
width = 4
"""


def test_a_changed_configuration_keeps_comments_order_and_formatting(tmp_path: Path) -> None:
    (tmp_path / "fed.toml").write_text(WRITTEN)
    keys = {"compressor": "identity", "epochs": 5, "folding": False, "party.bank.compressor": None}
    write_changed(tmp_path / "fed.toml", ["step_size.schedule=sqrt"], keys, tmp_path / "sub" / "fed.toml", "why")
    assert (tmp_path / "sub" / "fed.toml").read_text() == CHANGED


@pytest.mark.parametrize(
    ("text", "changes", "keys"),
    [
        (TOML, ["network.address=a:1", "party.b.model.width=3"], {"compressor": "identity"}),
        ('rounds = 3\ndata = { name = "digits" }\nstep_size.eta = 0.1\n', ["data.parties=2"], {"step_size.eta": 1.0}),
        ('[data]\nname = "digits"\n[step_size]\neta = 0.1\n', ["rounds=2"], {"seed": 4, "data.limit": None}),
        (
            'rounds = 1\n[party.a]\ncompressor = "auto"\n[data]\nname = "digits"\n[party.b]\ncompressor = "auto"\n'
            "[step_size]\neta = 0.1",
            [],
            {"party.a.compressor": None, "party.b.compressor": None, "folding": True},
        ),
    ],
)
def test_what_is_written_says_what_was_asked_for(
    text: str, changes: list[str], keys: dict[str, object], tmp_path: Path
) -> None:
    path, out = tmp_path / "run.toml", tmp_path / "changed.toml"
    path.write_text(text)
    write_changed(path, changes, keys, out, "why")
    expected = load_config(path, changes).model_dump()
    for key, value in keys.items():
        *sections, last = key.split(".")
        section = expected
        for name in sections:
            section = section[name]
        section[last] = value
    assert load_config(out).model_dump() == expected
