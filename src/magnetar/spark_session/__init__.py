"""The Spark session that all jobs share: its settings, its Python workers, and a class archive for a quick start."""
