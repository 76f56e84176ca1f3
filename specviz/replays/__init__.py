"""The papers' tables, measured again on your models, beside the numbers that they print."""
