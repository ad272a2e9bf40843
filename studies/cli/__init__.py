"""The command line of the studies: ``python -m studies …``."""
