"""The commands that take tables and model files; each imports what is slow to import when it runs."""
