"""The parts that all methods share: samples, tasks, the interface of methods, jobs and results."""
