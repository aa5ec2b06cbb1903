"""The pipeline: Spark streaming queries that carry the entries between all clusters (`magnetar replicate`)."""
