"""Attacks, one file each."""

INDEX = {
    "brep-mi": "brep_mi",
    "data-free": "data_free",
    "gmi": "gmi",
    "inversion-network": "inversion_network",
    "label-gap": "label_gap",
    "lira": "lira",
    "loss": "loss_threshold",
    "mi-face": "mi_face",
    "nearest-record": "nearest_record",
    "plg-mi": "plg_mi",
    "reconstruction-membership": "reconstruction_membership",
    "rmia": "rmia",
    "robustness": "robustness",
}
"""The module that registers each name, so that one name imports one module. Checked by tests/interface."""
