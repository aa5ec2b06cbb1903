"""Long batches: their tasks, the topics that sources may hand out to them, and the turns in which they run."""
