"""The step of DP-SGD."""
