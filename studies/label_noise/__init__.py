"""Experiment with flipped training labels (`studies bench noise`): accuracy, and how well wrong labels are found."""
