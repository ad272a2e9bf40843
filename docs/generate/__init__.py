"""Write the measured numbers into the documentation: ``python -m docs.generate``."""
