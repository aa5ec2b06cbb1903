"""Spark jobs that end: comparing clusters (`magnetar verify`) and filling an empty one (`magnetar restore`)."""
