"""A quantised model against the one in high precision: what each module loses, and why."""
