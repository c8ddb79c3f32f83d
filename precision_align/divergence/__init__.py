"""From verdicts on records to the first divergence."""
