"""The peers: their book, their interests, and discovery through the DHT.

In reading order:

    book                what the node knows of its peers
    overlap             what this node and a peer both want, and how much it is
    draw                the random order of peers
    interest_gossip     both sides of a connection state their interests
    interest_statement  what they state, as bytes
    connections         which peers to connect to, and which connections are kept
    discovery           finding peers through the DHT
    schedule            when this node announces itself there
    dht                 the DHT, as a client
    dht_server          the DHT, as a server
"""
