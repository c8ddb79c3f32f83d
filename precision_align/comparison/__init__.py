"""Evidence on pairs of records, combined into one verdict a record."""
