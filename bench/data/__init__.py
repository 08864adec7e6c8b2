"""Data sets: what they are (`datasets`), how they come here (`sources`, `store`), how they are split (`splits`)."""
