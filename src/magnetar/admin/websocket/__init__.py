"""Pulsar's WebSocket API: producers, consumers and readers for browsers, shells and languages without a client.

    gateway    paths, authorization, allowed pages; ends everything at shut-down
    options    the parameters of a URL
    client     requests to the broker and their answers, over a connection of the process itself
    publisher  messages to the partitions of a topic, and their receipts
    unpacking  stored entries as the messages that applications sent
    outgoing   texts on their way to the WebSocket, and back-pressure from it
    producer   JSON in, acknowledgements out
    consumer   messages out, acknowledgements in; a reader is a consumer whose subscription is not kept

Facts about the format: pulsar.apache.org/docs/next/client-libraries-websocket.
"""
