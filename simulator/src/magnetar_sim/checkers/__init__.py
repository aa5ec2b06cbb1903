"""One promise a file. A checker is told what happens, and looks at the brokers when asked to."""
