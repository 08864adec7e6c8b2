"""Federated training, with and without a client's privacy."""
