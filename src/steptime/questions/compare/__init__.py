"""The question `compare`: one side against another, pair by pair."""
