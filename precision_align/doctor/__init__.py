"""Is this machine, and each of its ranks, fit to record, replay and compare? Part of the live half.

Every check looks at one thing and says what to do about it; none raises.
"""
