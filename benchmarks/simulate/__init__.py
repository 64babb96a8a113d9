"""A network of nodes in one process, in virtual time: `python -m benchmarks.simulate`.

Theory of operation
-------------------
Each node is the production network side, `recon_node.p2p.P2P`, with its peer book, syncer,
pushes, sessions, framing and event streams, over the wire versions of `recon_node.recon`. Made up
are the two things that it stands on (its `Host` and its `Store`) and what lies between the
nodes:

- `wire`: when bytes arrive. A latency for each pair of nodes, a bandwidth for each node, loss,
  partitions.
- `host`: connections and streams over the wire, in place of libp2p. Dialling, negotiating a
  protocol and identifying take as many round trips as there.
- `store`: events in a dictionary, in place of the log. It checks that an event is the one that
  its key names, and takes a fixed time. Events are made-up small blocks without signatures.
- `dht`: the records of the DHT in one place, for the production discovery;

Time is trio's `MockClock`: it jumps to the next deadline as soon as nobody has anything to do, so
an hour of a quiet network takes seconds, and computing takes no time at all. One seed drives all
that is random, the order in which trio runs tasks included: a run can be repeated.
"""
