"""The experiment on hostile data: tables with copies, groups, noise, outliers and other defects."""
