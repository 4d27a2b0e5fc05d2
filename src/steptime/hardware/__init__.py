"""Devices, links, machines, software stacks, prices: what text files say of them."""
