"""The commands, with one module per noun; `all` puts them together."""
