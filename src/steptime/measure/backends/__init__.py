"""One file a framework. Only the worker imports them, and they never import each other."""
