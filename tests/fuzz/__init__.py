"""Damaged files of every format that others may have made: each gives a result, or one line.

``python -m tests.fuzz FORMAT --inputs 5000`` tries many; the tests try a few of each format.
"""
