"""Cross-fitting: folds of a task's rows, and networks that are each trained without one fold."""
