"""HTTP: connections, who may ask, bodies, answers, and the table of routes."""
