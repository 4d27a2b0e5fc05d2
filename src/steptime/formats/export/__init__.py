"""Networks as files of other tools."""
