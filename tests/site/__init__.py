"""Looks at the built book. Needs `make book` before, and Chromium: `make test-site`."""
