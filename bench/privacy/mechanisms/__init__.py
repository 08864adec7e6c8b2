"""Mechanisms, their noise, and the ledger that charges for them."""
