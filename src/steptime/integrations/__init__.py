"""steptime inside of other programs: training loops, test suites and coding agents."""
