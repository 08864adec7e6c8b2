"""From a grid to a plan, from a cell to its record."""
