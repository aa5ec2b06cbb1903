"""Names, message identities, errors and configuration: the basis of all other packages."""
