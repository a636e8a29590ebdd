"""The policy compiler: a policy file becomes C++ source with constexpr weights, and that a shared object.

The source holds data only, in hex floats and in the order in which the kernel reads it; the logic is the
kernel of native/core, copied beside it, so that the folder builds on a machine without this project. Compiled by
the core's flags it gives the bits of the blob, which every export checks before it is kept.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard import native
from steelyard.deploy.policy_file import PolicyFile
from steelyard.envs.errors import UserError

SOURCE, LIBRARY, HEADER = "policy.cpp", "policy.so", "policy_c.h"
KERNEL = ("policy.h", "policy.cc", "policy_c.h", "policy_face.h", "activations.h", "lanes.h", "schema.h")
_KERNEL_FOLDER = Path("native", "core")
_LINK_FLAGS = ("-shared", "-Wl,--as-needed", "-Wl,-z,defs")
_CHECK_STEPS = 32

_ENUM = {
    "flat": "PolicyInput::kFlat",
    "per_server": "PolicyInput::kPerServer",
    "tanh": "Tanh",
    "clip": "PolicyOutput::kClip",
    "discrete3": "PolicyOutput::kDiscrete3",
    "dense": "LayerKind::kDense",
    "gru": "LayerKind::kGru",
}
