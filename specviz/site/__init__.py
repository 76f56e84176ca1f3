"""The site: walkthroughs, players, methods, papers and the API reference, as plain files."""
