"""Times as devices reach them: forms with few named constants, priors for devices never seen.

A form is a function of a kernel, a device, the constants and `larger`, in arithmetic that holds for
numbers and for arrays; so one kernel, a grid and the rows of a fit are priced by the same code.
"""
