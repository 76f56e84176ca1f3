"""Damaged files of every format that other people may have written: each gives a result or a one-line error.

``python -m tests.fuzz FORMAT --inputs 5000`` tries many; the tests try a few of each format.
"""
