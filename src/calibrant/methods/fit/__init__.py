"""Training and calibration of a user's own network."""
