"""Accountants over events, calibration, and the formulas that papers claim."""
