"""From a grid to a plan, from one cell to its record."""
