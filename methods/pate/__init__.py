"""PATE: teachers vote, a student learns from the noisy answers."""
