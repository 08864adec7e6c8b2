"""ROC curves, bootstrap intervals, image similarity."""
