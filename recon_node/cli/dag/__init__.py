"""`recon-node dag`.

In reading order:

    dag_commands  push, pull, status and show
    publish       publish, resolve, grant and key; the file of the signing key
    transfer      what a node has of a DAG; pulling one from it, and pushing one to it
"""
