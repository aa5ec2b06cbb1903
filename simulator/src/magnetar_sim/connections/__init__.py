"""The network between clusters, clients and the pipeline, and those who connect to brokers over it."""
