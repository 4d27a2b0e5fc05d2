"""From records to tables: summaries, intervals, comparisons; predictions come here as records."""
