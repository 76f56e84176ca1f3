"""The papers' tables measured here: what to run for each, who measures it, how both stand together."""
