"""The reference for values: numpy runs the training graph op by op, as it is counted."""
