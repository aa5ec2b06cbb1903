"""Keeping the metadata of clusters that share no store the same: a pure machine (PIP-136 and beyond).

stamps      when and where a value was set, and which of two wins
documents   what is synchronised: tenants, namespaces, ..., as fields
records     a document with a stamp for each of its fields, and how two of them merge
digest      one number for all records, to compare clusters
deletions   which deletions are still announced, and which every cluster has confirmed
events      what travels between clusters
patterns    paths that stay local
projection  the documents that users see, as they follow from the records
machine     the theory, and the state of one cluster: local changes in, events in, updates of the store out
preview     what a change would change, field by field
"""
