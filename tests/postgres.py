"""A PostgreSQL server of the tests' own: a new cluster in a folder of its own, reached by a unix socket only.

import postgres

server = postgres.server          # a fixture that skips where PostgreSQL is not installed

def test_something(server: postgres.Server) -> None:
    open_table(Source("bank", url=server.url(), query="SELECT 1 AS a"))
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

ADMIN = "postgres"
READER, PASSWORD = "reader", "open/se@me"
"""A role that must give this password; it takes percent signs to write it into a url."""


@dataclass(frozen=True)
class Server:
    """A running server; its socket is in `folder`."""

    folder: Path

    def url(self, user: str = ADMIN, password: str = "") -> str:
        """The address of the database `postgres` for a role."""
        secret = f":{quote(password, safe='')}" if password else ""
        return f"postgresql://{user}{secret}@/postgres?host={self.folder}"

    def execute(self, *statements: str) -> None:
        """Run statements as the administrator."""
        with psycopg.connect(host=str(self.folder), user=ADMIN, dbname="postgres", autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server for the session of this test process."""
    with running() as found:
        yield found


@contextmanager
def running() -> Iterator[Server]:
    """Start a server and stop it; skip the test where there is none to start."""
    initdb = _binary("initdb")
    if initdb is None:
        pytest.skip("PostgreSQL is not installed: no initdb on the path or in /usr/lib/postgresql/*/bin")
    account = _account()
    folder = Path(tempfile.mkdtemp(prefix="cvfl-pg-"))  # short: a socket's path may have some hundred characters
    try:
        if account:
            shutil.chown(folder, account)
        _run(account, folder, initdb, "-D", folder / "data", "-U", ADMIN, "--auth=trust", "--no-sync", "-E", "UTF8")
        rules = f"local all {READER} scram-sha-256\nlocal all all trust\n"
        (folder / "data" / "pg_hba.conf").write_text(rules, encoding="ascii")
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
        control = initdb.with_name("pg_ctl")
        _run(account, folder, control, "-D", folder / "data", "-l", folder / "log", "-o", options, "-w", "start")
        try:
            found = Server(folder)
            found.execute(f"CREATE ROLE {READER} LOGIN PASSWORD '{PASSWORD}'", f"GRANT pg_read_all_data TO {READER}")
            yield found
        finally:
            _run(account, folder, control, "-D", folder / "data", "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


def _binary(name: str) -> Path | None:
    """A program of the newest PostgreSQL; Debian keeps those of each version in a folder that is not on the path."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    found = shutil.which(name)
    return versions[-1] if versions else Path(found) if found else None


def _account() -> str | None:
    """The account to run the server as: PostgreSQL refuses to run as root, and Debian's package makes one for it."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no account `postgres`")


def _run(account: str | None, folder: Path, *command: Path | str) -> None:
    """Run a command; its words go to a file, because a server that inherits a pipe would keep it open."""
    with (folder / "words").open("w+", encoding="utf-8") as words:
        done = subprocess.run(
            [str(part) for part in command],
            user=account,
            group=account and pwd.getpwnam(account).pw_gid,
            extra_groups=[] if account else None,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            check=False,
        )
        words.seek(0)
        assert done.returncode == 0, words.read()
