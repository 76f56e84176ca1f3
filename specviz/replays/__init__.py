"""Replays of the papers' tables: measured again on your models and set against the printed numbers."""
