"""Administration over HTTP: Pulsar's admin REST v2, `/geo/v1`, metrics and the status page."""
