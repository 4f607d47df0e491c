"""What the Makefile runs. Each file is one command: ``python -m scripts.NAME --help``."""
