"""Long batches: what their tasks do, which topics the sources may hand out to them, and when each begins."""
