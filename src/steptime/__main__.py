"""`python -m steptime` is the command `steptime`."""

from steptime.cli.main import main

main()
