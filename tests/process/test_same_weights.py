"""A step is the same mathematics with 1, 2 or 3 drafters: real processes, float64, equal weights at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.process.launches import make_run
from tests.process.tiny_run import write_inputs
