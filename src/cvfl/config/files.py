"""A configuration file: read with `--set key=value` changes, refused in one line that names the key, or changed."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, get_args

import tomlkit
from pydantic import ValidationError

from cvfl.config.modes import check_modes
from cvfl.config.schema import RunConfig
from cvfl.config.terms import SIGNATURE, check_own, check_signature, check_terms, digest, signature_of, signed
from cvfl.errors import ConfigError, suggest, writing
from cvfl.privacy.identity import Identity
from cvfl.types import Section


def load_config(path: Path, changes: Sequence[str] = ()) -> RunConfig:
    """The configuration in a TOML file, with ``key=value`` changes, such as ``data.parties=2``."""
    values = read_values(path)
    _change(values, changes)
    config = _found_from(path.parent, parse_config(values, str(path)))
    if source := terms_path(path):
        check_signature(source, read_toml(source), config, config.network.certificates)
    return config


def read_values(path: Path) -> dict[str, Any]:
    """The values of a configuration file, with those of the terms that it names."""
    own, source = read_toml(path), terms_path(path)
    if source is None:
        return own
    terms = read_toml(source)
    signature_of(source, terms)
    check_terms(source, terms)
    if source == path:
        return _without(terms, SIGNATURE)
    check_own(path, own, terms, source)
    joined = merged(_without(terms, SIGNATURE), _without(own, "terms"))
    return joined | {"terms_sha256": digest(terms)}


def terms_path(path: Path) -> Path | None:
    """The file of terms that a configuration file names, or is; None if it has all it needs itself."""
    values = read_toml(path)
    if SIGNATURE in values:
        return path
    return path.parent / str(values["terms"]) if "terms" in values else None


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file as they stand there."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: {error}") from None


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The values of both, those of `change` where they meet, section by section."""
    result = dict(base)
    for key, value in change.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def parse_config(values: dict[str, Any], source: str = "configuration") -> RunConfig:
    """Check the values; the first thing wrong is said in one line that names its key."""
    try:
        config = RunConfig.model_validate(values)
        check_modes(config)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explained(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return config


def write_changed(path: Path, changes: Sequence[str], keys: Mapping[str, Any], out: Path, comment: str) -> None:
    """Write the configuration of `path` to `out` with these changes, its comments, order and formatting kept.

    `changes` are as `load_config` takes them, `keys` are values by such keys, where None removes a key; `comment` goes
    on top. Files are named as seen from `out`.
    """
    # Taken from the file itself: in a checked configuration a password of a database is blotted out.
    document = _document(path)
    _change(document, changes)
    for key, value in keys.items():
        _put(document, key, value)
    for section, key in _files(document):
        if not Path(section[key]).is_absolute():
            section[key] = os.path.relpath(path.parent / section[key], out.parent)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(f"# {comment}\n{tomlkit.dumps(document)}", encoding="utf-8")
    load_config(out)


def write_terms(path: Path, text: str, changes: Sequence[str], sign_as: tuple[str, Identity] | None) -> None:
    """Write terms with these changes, comments kept, and signed by a role if one is given."""
    document = tomlkit.parse(text)
    document.pop(SIGNATURE, None)
    _change(document, changes)
    values = document.unwrap()
    check_terms(path, values)
    parse_config(values, str(path))
    if sign_as:
        name, identity = sign_as
        document[SIGNATURE] = signed(values, identity, name).model_dump()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(tomlkit.dumps(document), encoding="utf-8")


def _document(path: Path) -> tomlkit.TOMLDocument:
    """The file with its comments; one that names terms becomes one that has them."""
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    source = terms_path(path)
    if source is None:
        return document
    whole = tomlkit.parse(source.read_text(encoding="utf-8"))
    whole.pop(SIGNATURE, None)
    for key, value in _without(document, "terms", SIGNATURE).items():
        if isinstance(value, Mapping):
            whole.setdefault(key, tomlkit.table()).update(value)
        else:
            whole[key] = value
    return whole


def _without(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _change(values: MutableMapping[str, Any], changes: Sequence[str]) -> None:
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"--set takes key=value, not {change!r}")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text  # a bare word is a string, as a shell user writes it
        try:
            _put(values, key.strip(), value)
        except ConfigError as error:
            raise ConfigError(f"--set {change}: {error}") from None


def _put(values: MutableMapping[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for name in path:
        values = values.setdefault(name, {})
        if not isinstance(values, MutableMapping):
            raise ConfigError(f"{name} is not a section")
    if value is None:
        values.pop(last, None)
    else:
        values[last] = value


_FILES = ("table", "row_secret", "label_secret")
"""Keys of a party's section that name files."""


def _files(values: Mapping[str, Any]) -> Iterator[tuple[MutableMapping[str, Any], str]]:
    """Every place of a configuration that names a file."""
    parties = [(section, key) for section in values.get("party", {}).values() for key in _FILES]
    places = [(values.get("data", {}), "path"), (values.get("network", {}), "certificates"), *parties]
    return ((section, key) for section, key in places if key in section)


def _found_from(folder: Path, config: RunConfig) -> RunConfig:
    """Files are named as seen from the configuration file."""
    data = config.data.model_copy(update={"path": folder / config.data.path} if config.data.path else {})
    certificates = config.network.certificates
    network = config.network.model_copy(update={"certificates": folder / certificates} if certificates else {})
    party = {}
    for name, section in config.party.items():
        named = {key: getattr(section, key) for key in _FILES}
        found = {key: folder / path for key, path in named.items() if path}
        party[name] = section.model_copy(update=found)
    return config.model_copy(update={"data": data, "party": party, "network": network})


def _explained(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}{suggest(str(first['loc'][-1]), _keys(first['loc'][:-1]))}"
        case "missing":
            return f"key {key!r} is missing"
        case "value_error":
            return str(first["ctx"]["error"])
    return f"{key}: {first['msg'][:1].lower()}{first['msg'][1:]}, not {first['input']!r}"


def _keys(path: tuple[int | str, ...]) -> list[str]:
    """The keys of the section at this path."""
    section: type[Section] = RunConfig
    for name in path:
        if field := section.model_fields.get(str(name)):  # else it is the name of a party
            kinds = (field.annotation, *get_args(field.annotation))
            section = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section))
    return list(section.model_fields)
