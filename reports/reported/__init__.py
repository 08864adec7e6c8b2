"""The numbers that papers print, with a verdict on each epsilon."""
