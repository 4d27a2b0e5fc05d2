"""Devices, links, machines, software stacks and prices, read from text files."""
