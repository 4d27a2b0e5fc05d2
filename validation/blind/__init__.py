"""Readers of rows that told no constant: a module per kind of work, a function per source.

A reader turns the cells of a table into `Question`s, in the words of `answers.py`. Rows that the
source or its README says to leave out are refused with that reason.
"""
