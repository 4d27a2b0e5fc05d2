"""Launch commands and recipes of other tools as questions: `--from`, and MODEL that is one."""
