import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can share `federations`
sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "hooks"))  # and read the reference pages
torch.set_num_threads(1)  # several test processes share the cores
settings.register_profile("cvfl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cvfl")  # a busy machine is no failure
# Without the two below, law 3 waits for the disk and for lists of stack frames a third of its time.
os.fsync = lambda fd: None  # what it is for, a power cut, no test can have; processes that tests start do call it
if not torch.cuda.is_available():
    # The same for the processor; torch's own notes the stack of the caller for every kind of device that there is not.
    torch.manual_seed = torch.default_generator.manual_seed


@pytest.fixture(scope="module")
def no_pages() -> Iterator[None]:
    """Runs leave no pages by themselves: drawing one takes three times as long as a small run; others test what is
    on them. A page that a test asks for is written."""
    from cvfl.report import analysis, report  # noqa: PLC0415  matplotlib is slow to load

    write = report.write_report

    def write_report(runs: Sequence[Path], out: Path, *rest: Any) -> None:
        if list(runs) != [out.parent]:
            write(runs, out, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_report", write_report)
        patch.setattr(analysis, "write_analysis_page", lambda *_: None)
        yield
