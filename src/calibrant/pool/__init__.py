"""The pool: classifiers of several kinds, cross-fitted on the same folds and combined by their held-out losses."""
