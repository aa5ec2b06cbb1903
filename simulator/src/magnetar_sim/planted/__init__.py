"""Planted bugs: rules of the product's code that are left out on purpose, to see whether the checkers notice."""
