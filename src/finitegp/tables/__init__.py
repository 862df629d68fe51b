"""Tables as people have them: read from files, turned into numbers, learned from."""
