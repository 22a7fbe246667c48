"""Which modes of a run go together: every rule once, with the one line that refuses what breaks it.

Rules about the configuration alone are a table, and are checked when it is read. Two more need to know the parties, or
the server model, and are checked when roles are built: `label_holder` and `check_sum`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from cvfl.compress import Scalar, build
from cvfl.compress.limits import limits
from cvfl.config.schema import GRID, RunConfig
from cvfl.errors import ConfigError, suggest
from cvfl.protocol.learning.layers import initialised
from cvfl.protocol.recipe import MakeModel
from cvfl.rng import stream
from cvfl.types import SERVER


def check_modes(config: RunConfig) -> None:
    """Refuse a configuration whose modes exclude each other."""
    for broken, line in _RULES:
        if found := broken(config):
            raise ConfigError(line.format(found, config=config))


def _private(config: RunConfig) -> bool:
    """Whether one role alone holds the labels: nothing that parties are told may depend on them but gradients."""
    return config.privacy.private_labels


def _secure(config: RunConfig) -> bool:
    """Whether what parties send is added up, on a grid that all have in common, and can be read as a sum alone."""
    return config.privacy.secure


def _other_label(config: RunConfig) -> str | None:
    """A party with a label that is not the one that holds the labels."""
    named = (name for name, party in config.party.items() if party.label is not None and name != config.privacy.labels)
    return next(named, None)


def _compressors(config: RunConfig) -> Iterator[tuple[str, str]]:
    """The compressors of embeddings, by the keys that say them."""
    for name in ("", *config.party):
        yield (f"party.{name}.compressor" if name else "compressor"), config.compressor_of(name)


def _without_grid(config: RunConfig) -> str | None:
    """The key of a compressor that is not a grid which is the same at all parties."""
    for key, spec in _compressors(config):
        grid = build(spec)
        if not isinstance(grid, Scalar) or grid.range.fixed is None:
            return key
    return None


def _without_limits(config: RunConfig) -> str | None:
    """Why a compressor cannot take noise, which has no limits."""
    for key, spec in _compressors(config):
        try:
            limits(build(spec))
        except ConfigError as error:
            return f"{key}: {error}"
    return None


def _rigid(config: RunConfig) -> str | None:
    """The key of a compressor whose messages cannot become coarser as a run goes on."""
    return next((key for key, spec in _compressors(config) if not build(spec).follows), None)


_RULES: tuple[tuple[Callable[[RunConfig], object], str], ...] = (
    (
        lambda c: _private(c) and c.algorithm == 1,
        "privacy.labels = {config.privacy.labels!r} keeps labels from parties; algorithm 1 needs them, take 2",
    ),
    (
        lambda c: _private(c) and c.data.stratify,
        "data.stratify splits rows by their labels; with private labels the split would tell of them: "
        "set data.stratify = false",
    ),
    (
        lambda c: _private(c) and c.data.name is None and not c.privacy.relayed,
        "privacy.labels: tables have their labels at a party, where they stay; give its name",
    ),
    (
        lambda c: _private(c) and _other_label(c),
        "labels at two roles: privacy.labels = {config.privacy.labels!r}, and party.{}.label",
    ),
    (
        lambda c: c.privacy.randomised and _other_label(c),
        "labels at two roles: privacy.labels = {config.privacy.labels!r}, and party.{}.label",
    ),
    (
        lambda c: c.privacy.randomised and c.data.name is None and c.privacy.labels == "server",
        "privacy.labels: tables have their labels at a party, which randomises them; give its name",
    ),
    (
        lambda c: c.privacy.private_model and c.privacy.labels == "server",
        "privacy.private_model is for labels of a party; the server has those of this data set",
    ),
    (
        lambda c: c.privacy.private_model and (does_without(c) or c.privacy.noise is not None or c.budget is not None),
        "privacy.private_model has every party send all rows once more when the rounds are over: not with "
        "absence.rate, data.alignment = 'outer', privacy.noise or budget",
    ),
    (
        lambda c: c.algorithm == 2 and c.folding,
        "folding is for algorithm 1; algorithm 2 sends no embeddings to parties",
    ),
    (
        lambda c: c.first_layer == "parties" and (c.algorithm == 2 or _secure(c) or c.privacy.noise is not None),
        "first_layer = 'parties' is for algorithm 1 with embeddings that are read, and without noise",
    ),
    (
        lambda c: c.local_rows == "cached" and (c.algorithm == 2 or _secure(c)),
        "local_rows = 'cached' steps on what the others sent before; with private labels or secure aggregation a party "
        "has nothing of them that it could step on",
    ),
    (
        lambda c: _secure(c) and c.server_model.name in ("linear", "mlp", "wide_deep", "attention"),
        "privacy.aggregation = 'secure' shows the server the sum of the embeddings alone; "
        "server_model.name = {config.server_model.name!r} needs each of them, set server_model.name = 'sum'",
    ),
    (
        lambda c: _secure(c) and c.data.alignment == "outer",
        "privacy.aggregation = 'secure' shows the server a sum in which nobody can be missing; "
        "data.alignment = 'outer' needs each embedding",
    ),
    (
        lambda c: _secure(c) and (c.folding or c.partial_compressor),
        "privacy.aggregation = 'secure' sends parties the sum as it is: no folding",
    ),
    (
        lambda c: _secure(c) and _without_grid(c),
        f"{{}}: secure aggregation needs a grid that all parties have, such as {GRID!r}",
    ),
    (
        lambda c: _secure(c) and c.absence.rate > 0,
        "privacy.aggregation = 'secure' shows the server a sum in which nobody can be left out; absence.rate needs "
        "each embedding",
    ),
    (
        lambda c: c.privacy.noise_shared and not _secure(c),
        "privacy.noise_shared is for privacy.aggregation = 'secure': embeddings that can be read one by one would each "
        "have a part of the noise",
    ),
    (lambda c: c.privacy.noise is not None and _without_limits(c), "{}"),
    (
        lambda c: c.step_size.eta == "auto" and c.privacy.noise is not None,
        "step_size.eta = 'auto' tries step sizes on rows that noise protects, and each trial would spend of epsilon; "
        "give a number",
    ),
    (
        lambda c: c.budget is not None and (c.algorithm == 2 or _secure(c)),
        "budget is for algorithm 1 with embeddings that are read: what algorithm 2 or secure aggregation sends cannot "
        "be made coarser",
    ),
    (
        lambda c: c.budget is not None and _rigid(c),
        "budget needs a compressor that can adapt, 'auto' or one around 'shaped'; {} cannot",
    ),
)


def check_step_size(config: RunConfig) -> None:
    """Roles that are apart, and what compares runs, need a number: trials are for one process that has all rows."""
    if config.step_size.eta == "auto":
        raise ConfigError(
            "step_size.eta = 'auto' is for `cvfl train` in one process, which tries some and tells the best; "
            "give that number here, or have `cvfl tune` search around one"
        )


def does_without(config: RunConfig) -> bool:
    """Whether models learn what stands for a party that is away, or does not hold a row."""
    return config.absence.rate > 0 or config.data.alignment == "outer"


def label_holder(config: RunConfig, names: Sequence[str]) -> int:
    """The role that scores by the labels: the server, which may share them, or the party that keeps them to itself.

    Labels that their holder randomised go to the server as shared ones do.
    """
    holder = config.privacy.labels
    if holder in ("shared", "server"):
        return SERVER
    if holder not in names:
        raise ConfigError(f"privacy.labels: there is no party {holder!r}{suggest(holder, names)}")
    if len(names) == 1:
        raise ConfigError(f"privacy.labels: {holder} is the only party, there is nobody to keep labels from")
    return names.index(holder) + 1 if config.privacy.relayed else SERVER


def private_holder(config: RunConfig, names: Sequence[str]) -> int:
    """The party that fits a model of its own to the labels which it told randomised, if one does."""
    label_holder(config, names)  # refuses a name that is none
    return names.index(config.privacy.labels) + 1 if config.privacy.private_model else SERVER


def scoring_party(config: RunConfig, names: Sequence[str]) -> int:
    """The party that alone scores rows, for which the server passes on what it cannot read, if there is one."""
    return label_holder(config, names) or private_holder(config, names)


def check_sum(
    config: RunConfig, names: Sequence[str], widths: Sequence[int], compressors: Sequence[str], make: MakeModel
) -> None:
    """Secure aggregation: two parties or more, one grid for all, and a server model for which the sum is enough."""
    if len(names) < 2:
        raise ConfigError("privacy.aggregation = 'secure' needs two parties or more: a sum of one hides nothing")
    for name, spec in zip(names, compressors, strict=True):
        if spec != compressors[0]:
            first = f"{names[0]} has {compressors[0]!r}"
            raise ConfigError(f"secure aggregation needs one grid for all parties: {first}, {name} {spec!r}")
    model, dtype = initialised(make, config.seed, SERVER).eval(), getattr(torch, config.precision)
    phi = [torch.from_numpy(stream(m, "probe").uniform(2 * w)).to(dtype).reshape(2, w) for m, w in enumerate(widths)]
    try:
        with torch.no_grad():
            same = torch.allclose(model(phi), model([torch.stack(phi).sum(0)]), rtol=1e-4, atol=1e-5)
    except (RuntimeError, ValueError, IndexError):
        same = False
    if not same:
        raise ConfigError("privacy.aggregation = 'secure': the server model does not add embeddings up; take 'sum'")
