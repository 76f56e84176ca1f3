"""One file a bench: each has a function `bench` that returns a `Report`."""
