"""Times as devices reach them: forms with few named constants, priors for devices never seen.

A form is a function of kernels that differ in numbers alone, a device and the constants; so a step,
a grid and the rows of a fit are priced by the same code.
"""
