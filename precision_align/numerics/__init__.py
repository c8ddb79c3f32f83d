"""Numbers: statistics, sketches, error metrics and verdicts on arrays; float64 accumulation always."""
