"""Values, configs, errors, seeds and progress: what every other package builds on."""
