"""Types that both halves share: keys, records, trees, verdicts, errors.

Nothing here imports another package of ours, nor torch.
"""
