import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can share `federations`
sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "hooks"))  # and read the reference pages
torch.set_num_threads(1)  # several test processes share the cores
