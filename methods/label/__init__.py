"""Label privacy: images are public, labels are randomised."""
