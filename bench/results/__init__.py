"""Typed records, and the run directory that holds them."""
