"""The operator-mapping library: rows, golden functions, cases, their runner."""
