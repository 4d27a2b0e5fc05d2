"""Input of real files: what a folder holds, staged where asked, read and put into batches."""
