"""One rank of a plan: its network, its pieces, its constants and its site."""
