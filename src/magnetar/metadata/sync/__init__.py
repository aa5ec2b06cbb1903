"""Keeping the metadata of clusters that share no store the same: a pure machine (PIP-136 and beyond).

    stamps      when and where a value was set; the hybrid logical clock
    documents   what is synchronised: tenants, namespaces, ..., as fields
    records     a document with a stamp beside every field, and how two of them merge
    events      what travels between clusters
    patterns    paths that stay local
    machine     the state of one cluster: local changes in, events in, updates of the store out

Theory: a record is an element of a join semilattice, pointwise the newest stamp. Merging is commutative, associative and
idempotent, so that every cluster ends with the same records whatever the order, repetition or loss of events, as long as
everybody hears of everything in the end (snapshots). What users see, the projection, follows from the records alone, but for
what a cluster must keep because its topics still need it.
"""
