"""The main job: real flights, three clusters, and what may go wrong."""
