"""steptime inside of other programs: test suites, coding agents and training loops."""
