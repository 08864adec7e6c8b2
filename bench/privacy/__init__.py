"""The privacy layer: mechanisms, the ledger that applies and records them, and the accountants."""
