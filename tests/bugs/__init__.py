"""Mistakes that public trackers report about attention, each with the smallest test that shows it.

A test is named by the kind of mistake (A1, M4, …) and its docstring lists the reports it stands for, as repository and
number. Each runs on the reference, on its tiles and on every backend of the fast one.
"""
