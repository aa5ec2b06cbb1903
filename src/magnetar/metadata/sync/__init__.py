"""Synchronisation of the metadata of clusters that share no store: a pure machine (PIP-136 and beyond).

stamps      the time and cluster of a change, and which of two wins
documents   the synchronised documents: tenants, namespaces, ..., as fields
records     a document with a stamp for each of its fields, and how two of them merge
digest      one number for all records, to compare clusters
deletions   deletions that are still announced, and those that every cluster has confirmed
events      the messages between clusters
patterns    paths that stay local
projection  the documents that users see, as they follow from the records
machine     the theory, and the state of one cluster: local changes in, events in, updates of the store out
preview     the effects of a change, field by field
"""
