"""Harness of the benchmark of private students: run, account, compare."""

from __future__ import annotations

from bench.core.torchvision_compat import allow_cpu_torchvision

__version__ = "0.1.0"

# timm imports torchvision, whose registry build does not load beside a CPU build of torch. This only puts a finder on
# the import path; nothing is imported before torchvision is.
allow_cpu_torchvision()
