"""Audits: lower bounds on epsilon by experiment."""
