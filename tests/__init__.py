"""Tests: they mirror lib/; conformance/ holds other people's suites, bugs/ one test for each kind of public report."""
