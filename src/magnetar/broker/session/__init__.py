"""One client connection: passing each command of the Pulsar protocol to the part of the broker that answers it."""
