"""From rows that were measured to constants, and how far predictions are off."""
