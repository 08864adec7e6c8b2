"""Linear models and class sums on public features."""
