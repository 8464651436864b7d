"""The nouns of mlango and its loop: plain Python without settings, models or I/O."""
