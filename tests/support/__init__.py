"""What tests of several folders share.

waiting          conditions of processes and tasks, and ports
watchdog         a test that hangs fails, and says where
forging          events that are badly signed
wallets          capabilities of an account
vectors          the tables in tests/data
web_server       a web server that answers anything
sdk_sample       events by the Ceramic JavaScript SDK
tangle_samples   threads and their tangles
dev_chain        a chain on this machine, by anvil
npm_packages     JavaScript programs, as oracles
"""
