"""DPSD and DGD: data-free distillation from a private teacher, with their repaired variants."""
