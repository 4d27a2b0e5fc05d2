"""steptime inside of other programs: test suites and coding agents."""
