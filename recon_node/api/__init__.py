"""The HTTP API.

It has the paths, bodies and status codes of a ceramic-one node (events, streams, feed, interests,
peers), and also the feed as Arrow, the state of Recon, metrics, the OpenAPI document, and pages for
people. It knows the store, and only the public names of the network side. In reading order:

    listener           where it listens
    server             serves the application on trio: connections, and HTTP/1.1 in them
    middleware         what every request passes: counting, who may send it, time and size
    app                the application: all endpoints, and which one a request is for
    endpoint           how an endpoint is declared, and what of the node its handler may use
    routes/            the endpoints
    models             how bodies and parameters are read and written
    errors             how errors are answered
    evaluation         computes streams in other processes
    evaluation_worker  such a process
    metrics/           what Prometheus is shown
    openapi            the OpenAPI document
    settings           the address, who may use the API, and the bounds of requests

This file imports none of them: the processes that compute streams (`evaluation_worker`) need few,
and start in half the time without the others.
"""
