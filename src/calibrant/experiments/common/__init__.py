"""What all experiments share: the store of finished runs, the jobs that fill it, measures, verdicts, a report's end."""
