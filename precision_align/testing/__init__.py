"""Conformance suites that others may subclass: what a device has to do so that everything here works on it."""
