"""Random official clients, kills of the broker, and a ledger of every message that has to add up.

    publishing      every message has a number; its receipt makes it *confirmed*, an error or silence leaves it *unknown*
    consuming       subscriptions of all four types; messages are acknowledged, given back, or left when the consumer goes
    faults          SIGKILL and SIGTERM of the broker, at random moments
    then it heals   everything is consumed until the broker says that no backlog is left

For each subscription then

    confirmed <= delivered (once or more) <= confirmed + unknown        nothing is lost, nothing is made up
    delivered = acknowledged                                           and no backlog is left
    deliveries = delivered + redelivered (+ published again)           each redelivery has a cause of its own, while the
                                                                       message was not acknowledged; none after a kill at
                                                                       the end
    first deliveries                                                   in order, of the types that promise one

What a cause is (`_causes`): the message was given back, its consumer went, another consumer's turn came (Failover), or the broker
was down. Then the disk: what is acknowledged goes by itself, and the rest with its topics.
"""
