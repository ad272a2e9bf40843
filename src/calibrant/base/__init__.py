"""The base of all rooms: files, labels, inputs, settings, words and devices. It imports no room."""
