"""The question `plan`: a training split over many devices, its step, memory and cost."""
