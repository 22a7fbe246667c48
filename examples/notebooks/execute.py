"""Run the notebooks, and keep what their cells show: python examples/notebooks/execute.py [NAME.ipynb ...]

Each runs in an empty folder with the Python that runs this file. What differs from machine to machine or from run to
run, such as versions and times of day, is left out, so a notebook changes only where its results do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
LARGEST = 150_000
"""Most bytes of a notebook with its outputs."""
_METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python"},
}


class ThisPython(AsyncKernelManager):
    """A kernel of the Python that runs this, whatever kernels the user has installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """How it is started."""
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")


def executed(path: Path, seconds: int = 600) -> Any:
    """The notebook with the outputs of a fresh run; a cell that fails raises."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=seconds, resources=where, record_timing=False, coalesce_streams=True)
        client.kernel_manager_class = ThisPython
        client.execute()
    return _plain(notebook)


def _plain(notebook: Any) -> Any:
    """The notebook without what is not a result."""
    notebook.metadata = nbformat.from_dict(_METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
    return notebook


def main(names: Sequence[str]) -> None:
    """Run these notebooks, or all, and write them where they are."""
    for path in [FOLDER / name for name in names] or sorted(FOLDER.glob("*.ipynb")):
        text = nbformat.writes(executed(path)) + "\n"
        if len(text.encode()) > LARGEST:
            raise SystemExit(f"{path.name}: {len(text.encode()):,} bytes; show less, or smaller figures")
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(text.encode()):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
