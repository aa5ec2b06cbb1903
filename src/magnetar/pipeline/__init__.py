"""The pipeline: one Spark streaming query that carries entries between all clusters (`magnetar replicate`)."""
