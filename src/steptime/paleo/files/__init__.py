"""Network files of Paleo: a closed room, which only `importers` knows."""
