"""One file per bench: each has a function `bench` that returns a `Report`."""
