"""The experiment on users' networks: `calibrant.fit` compared with plain training and a temperature."""
