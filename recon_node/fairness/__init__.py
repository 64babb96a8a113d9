"""Who gets how much of what is limited, whoever asks for it.

slots     who keeps one of few connections, requests or sessions
turns     computations, one address block after the other
pacing    delays after failures, and how much a client or peer may use in the long run
"""
