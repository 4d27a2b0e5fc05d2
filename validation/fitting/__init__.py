"""How the shipped priors are fitted to reference data: a file per data set, a file of stages."""
