"""Attacks, one file each."""

_NAMES = (
    "brep-mi", "data-free", "gmi", "inversion-network", "label-gap", "lira", "loss", "mi-face", "nearest-record",
    "plg-mi", "reconstruction-membership", "rmia", "robustness",
)  # fmt: skip

INDEX = {name: name.replace("-", "_") for name in _NAMES} | {"loss": "loss_threshold"}
"""The module that registers each name, so that one name imports one module. Checked by tests/interface."""
