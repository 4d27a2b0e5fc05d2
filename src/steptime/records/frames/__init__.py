"""Columns of records, built and stored."""
