"""One promise a file. A checker observes what happens, and looks at the brokers when asked to."""
