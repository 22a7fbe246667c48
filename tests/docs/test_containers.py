"""Containers cannot be built where the tests run; what their files say can be held against the package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cvfl.cli import COMMANDS, loaded
from cvfl.config.files import load_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "containers"
FILES = sorted(FOLDER.glob("*.Containerfile"))
KNOWN = {"ARG", "FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yml").read_text(encoding="utf-8"))
ROLES = {"server", "hospital", "bank", "insurer"}


def instructions(path: Path) -> list[tuple[str, str]]:
    """Each instruction and what follows it, continued lines in one."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def taken(role: str, words: list[str]) -> None:
    """Assert that the command takes these arguments: every option is there, and has the value that it needs."""
    command = loaded(role)
    context = command.make_context(role, list(words), resilient_parsing=True)
    assert context.args == []
    options = {name for given in command.params for name in given.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_containerfile_is_sound(path: Path) -> None:
    found = instructions(path)
    assert {word for word, _ in found} <= KNOWN
    assert found[0][0] == "ARG"
    said = dict(found)
    assert said["USER"] == "10001:10001"  # the last one counts, and it is not root
    assert [word for word, _ in found].index("USER") > max(n for n, (word, _) in enumerate(found) if word == "RUN")
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources)
    (extras,) = re.findall(r"/src\[([\w,]+)\]", path.read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*extras.split(",")} <= set(project["optional-dependencies"])
    program, role = json.loads(said["ENTRYPOINT"])
    assert program in project["scripts"]
    assert role == path.stem
    taken(role, json.loads(said["CMD"]))


def test_there_is_one_for_each_kind_of_role() -> None:
    assert [path.stem for path in FILES] == ["party", "server"]


@pytest.mark.parametrize("name", sorted(ROLES))
def test_a_service_is_closed_and_its_command_is_one(name: str) -> None:
    assert set(COMPOSE["services"]) == ROLES
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    taken("server" if name == "server" else "party", service["command"])
    source, _, mode = service["volumes"][0].split(":")
    assert mode == "ro"
    config = Path(service["command"][0])
    changes = [word.removeprefix("--set=") for word in service["command"] if word.startswith("--set=")]
    settings = load_config(FOLDER / source / config.name, changes)
    assert settings.network.address.endswith(":8443")
    assert name == "server" or f"--name={name}" in service["command"]
    assert f"{name}:/var/lib/cvfl" in service["volumes"]
    assert name in COMPOSE["volumes"]


def test_the_commands_are_there() -> None:
    assert {"server", "party"} <= set(COMMANDS["Run a federation"])
    program = shutil.which("cvfl", path=str(Path(sys.executable).parent))
    assert program is not None
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("cvfl ")
