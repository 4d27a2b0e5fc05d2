"""Language models on one's own machine: llama.cpp and its relatives, their memory and speed."""
