"""Links of one broker: the topics that they carry to and from other clusters. The protocol itself is in
`magnetar.replication.link`.
"""
