"""One module a noun of the command line; `all` puts them together."""
