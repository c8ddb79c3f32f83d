"""A small language model, its port to Ascend with one wrong operator, and the script that trains it (torch)."""
