"""The networks of the papers, for tables and images."""
