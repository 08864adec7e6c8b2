"""Benchmark of private students: load results, run grids, account for privacy.

frame = bench.load_results()                                 # every published record, as a DataFrame
frame = bench.run(methods="pate", datasets="digits", eps=1)  # what `python -m bench run` does
cost = bench.epsilon("trpate", gamma=0.05, queries=100)      # what is claimed, and what is proven
best = bench.choose(eps=2, public_data="none").best          # the best methods for a budget, and their commands
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.core.errors import BenchError
from bench.core.fixed_products import fix_products
from bench.core.lazy import lazy_names
from bench.core.torchvision_compat import allow_cpu_torchvision
from bench.core.version import __version__

if TYPE_CHECKING:
    from bench.api import load_results, run
    from bench.api.boards import choose, compare, compose, list_datasets, list_methods, plot
    from bench.api.evaluations import attack, audit, check
    from bench.data.own_dataset import save_dataset
    from bench.privacy.accounting.cost import PrivacyCost, epsilon

__all__ = [
    "BenchError", "PrivacyCost", "__version__", "attack", "audit", "check", "choose", "compare",
    "compose", "epsilon", "list_datasets", "list_methods", "load_results", "plot", "run", "save_dataset",
]  # fmt: skip

# timm imports torchvision, whose registry build does not load next to a CPU build of torch. This only puts a finder on
# the import path; nothing is imported before torchvision is.
allow_cpu_torchvision()

fix_products()  # before MKL starts

__getattr__, __dir__ = lazy_names(__name__, __file__, __all__)
