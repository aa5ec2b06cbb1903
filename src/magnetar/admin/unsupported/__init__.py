"""Features of Pulsar's REST that this broker does not have: 501 with a reason, and the answers for policies that are
never set.
"""
