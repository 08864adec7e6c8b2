"""Slow libraries, imported at first use. To add one, import it under ``if TYPE_CHECKING``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.core.lazy import lazy_modules

if TYPE_CHECKING:
    import dp_accounting as dp_accounting
    import matplotlib as matplotlib
    import numpy as numpy
    import opacus as opacus
    import pandas as pandas
    import pyarrow as pyarrow
    import pydantic as pydantic
    import rich as rich
    import scipy as scipy
    import sklearn as sklearn
    import submitit as submitit
    import timm as timm
    import torch as torch
    import torchvision as torchvision
    import yaml as yaml
    from dp_accounting.pld import pld_pmf as pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as privacy_loss_distribution
    from matplotlib import style as style
    from matplotlib.backends import backend_agg as backend_agg
    from PIL import Image as Image
    from rich import progress as progress
else:
    globals().update(lazy_modules(__file__))
