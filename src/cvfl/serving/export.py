"""A role's model as an ONNX file, for other scoring systems: from prepared rows to an embedding, or on to outputs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from cvfl.errors import ConfigError, DataError, suggest, writing
from cvfl.runs.bundle import Bundle, PartyBundle, party_module, server_module
from cvfl.serving.bundles import Bundles


class _Separate(nn.Module):
    """The server model with an input for each party's embedding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *embeddings: Tensor) -> Tensor:
        """B x outputs."""
        outputs: Tensor = self.model(list(embeddings))
        return outputs


def chosen(bundles: Bundles, role: str | None) -> Bundle:
    """The bundle that is meant: of the role, or the only one that there is."""
    found: dict[str, Bundle] = {**bundles.parties, **({"server": bundles.server} if bundles.server else {})}
    if role is None and len(found) > 1:
        raise ConfigError(f"--role: which one of {', '.join(found)}?")
    if role is not None and role not in found:
        raise ConfigError(f"--role: there is no model of {role!r} here{suggest(role, found)}")
    return found[role] if role else next(iter(found.values()))


def export_onnx(bundle: Bundle, folder: Path, out: Path) -> None:
    """Write the model: a party's takes `rows` and gives `h`, that of the server takes `h_NAME` of every party.

    The bundle itself is in the file's metadata, under `cvfl`.
    """
    if isinstance(bundle, PartyBundle):
        model, inputs, output = party_module(bundle, folder), {"rows": bundle.shape}, "h"
    else:
        model, output = _Separate(server_module(bundle, folder)), "outputs"
        inputs = {f"h_{name}": (width,) for name, width in zip(bundle.names, bundle.widths, strict=True)}
    sample = tuple(torch.zeros(2, *shape, dtype=bundle.dtype) for shape in inputs.values())
    rows = torch.export.Dim("rows")
    shapes = ({0: rows},) if isinstance(bundle, PartyBundle) else (tuple({0: rows} for _ in sample),)
    with _quiet():
        try:
            program = torch.onnx.export(
                model, sample, input_names=list(inputs), output_names=[output], dynamic_shapes=shapes, verbose=False
            )
        except torch.onnx.errors.OnnxExporterError as error:
            said = " ".join(str(error).split())[:200]
            raise DataError(f"{bundle.role}: its model cannot be written as ONNX ({said})") from None
    assert program is not None
    program.model.metadata_props["cvfl"] = bundle.model_dump_json()
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        program.save(out, external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of itself."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
