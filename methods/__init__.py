"""One file per method. Modules import torch and the like inside functions, so that listing and planning stay fast."""
