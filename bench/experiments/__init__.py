"""Plan a grid of cells and run each cell to a record."""
