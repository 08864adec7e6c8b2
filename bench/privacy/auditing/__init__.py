"""Statistics of audits: lower bounds on epsilon from observed runs."""
