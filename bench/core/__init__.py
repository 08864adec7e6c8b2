"""Values, configs, errors, seeds and progress: used by every other package."""
