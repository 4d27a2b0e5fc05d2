"""Command line: parse, call, print. Nothing imports it."""
