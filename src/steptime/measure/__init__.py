"""Know this machine and measure on it. Frameworks are imported only inside the worker process."""
