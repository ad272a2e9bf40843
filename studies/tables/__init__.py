"""The experiment on tables: every method on every table of a folder, compared with other libraries."""
