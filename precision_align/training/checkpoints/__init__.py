"""Two checkpoints, or a checkpoint and the model that was saved, compared one tensor at a time."""
