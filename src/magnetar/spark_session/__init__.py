"""The Spark session that every job shares: its settings, its Python workers, and a class archive for a quick start."""
