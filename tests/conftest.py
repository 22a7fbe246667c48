import os
import sys
from pathlib import Path

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
