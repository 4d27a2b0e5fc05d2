"""Tables of answers as text, JSON, CSV and HTML, and tables of files."""
