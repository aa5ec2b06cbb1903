"""Topics that store messages: one topic, its limits, its compaction, its schemas."""
