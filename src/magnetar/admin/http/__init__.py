"""HTTP: connections, authorization, bodies, answers, and the table of routes."""
