"""`python -m steptime` is the command `steptime`."""

from steptime.cli.main import main

if __name__ == "__main__":  # not in processes that it starts
    main()
