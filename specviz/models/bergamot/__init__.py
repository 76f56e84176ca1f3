"""Bergamot translators: Marian binaries with a recurrent decoder, run on torch."""
