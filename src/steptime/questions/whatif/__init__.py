"""The question `whatif`: what changed hardware would do to the same networks."""
