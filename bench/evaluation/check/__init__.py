"""`bench check`: nothing private leaves outside the ledger, and each stated sensitivity holds."""
