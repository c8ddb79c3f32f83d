"""What CUDA code a source tree holds, and what each finding needs on Ascend. Reads source, runs none of it."""
