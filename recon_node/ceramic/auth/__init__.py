"""Who signs events. In reading order:

signature   who signed an event, and whether they were allowed to
capability  what a capability (CACAO) says, and which streams it covers
envelope    the envelope of a signed event, and strict readers for the blocks of strangers
did         DIDs, and the keys that they name
wallets     signatures of capabilities by wallets and passkeys
ecdsa       ECDSA keys, for those who have any
"""
