"""ROC curves, bootstrap intervals, similarity of images."""
