"""DP-SGD and its variants."""
